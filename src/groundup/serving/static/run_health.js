// How the chosen runs do: state, skipped steps, spikes of the loss, checkpoints.

import { countOf, element } from "./shell.js";
import { agoText, formatBytes, formatDuration, formatNumber, formatStep } from "./run_format.js";
import { refreshAgo, statusBadge, swatch } from "./run_format.js";
import { secondsLeft } from "./run_overview.js";

const SHOWN_AT_ONCE = 8;

/** runs: [{ run, slot, lines, details }] */
export function renderHealth(root, runs, store) {
  const known = runs.filter(({ details }) => details !== undefined);
  const state = JSON.stringify(known.map(({ run, slot, details }) => [run, slot, details.health]));
  if (root.dataset.shown === state) {
    refreshAgo(root, store);
    return;
  }
  const opened = new Set([...root.querySelectorAll("details[open]")].map((node) => node.dataset.key));
  root.dataset.shown = state;
  root.replaceChildren(element("div", { className: "health-cards" }, ...known.map((run) => card(run, store))));
  for (const node of root.querySelectorAll("details")) node.open = opened.has(node.dataset.key);
}

function card({ run, slot, details }, store) {
  const { health } = details;
  const left = run.status === "running" ? secondsLeft(run) : null;
  const facts = [
    ["Last update", agoText(run.updated, store)],
    ["Progress", `${formatStep(run.step ?? 0)}${run.num_steps ? ` of ${formatStep(run.num_steps)}` : ""} steps`],
    left !== null && ["Left", formatDuration(left)],
    ["Peak memory", formatBytes(health.memory_bytes)],
    details.environment.device && ["Device", String(details.environment.device), "wide"],
  ].filter(Boolean);
  return element(
    "section",
    { className: "card health-card" },
    element(
      "div",
      { className: "health-head" },
      element("h2", {}, swatch(slot), element("span", {}, run.name)),
      statusBadge(run.status),
    ),
    element("p", { className: "health-message" }, run.message),
    element("dl", { className: "facts" }, ...facts.map(fact)),
    element(
      "ul",
      { className: "checks" },
      check(health.num_skipped, "No step was skipped", "step", "skipped", skippedList(run.name, health)),
      check(health.num_spikes, "No spike in the loss", "spike", "in the loss", spikeList(run.name, health)),
      check(health.num_damaged_lines, "All metrics can be read", "line", "of metrics.jsonl cannot be read"),
    ),
    checkpointTable(health.checkpoints, store),
  );
}

function fact([name, value, className = ""]) {
  return element("div", { className }, element("dt", {}, name), element("dd", {}, value));
}

function check(number, goodWords, thing, badWords, list = null) {
  const isGood = number === 0;
  return element(
    "li",
    { className: isGood ? "check good" : "check bad" },
    element("span", { className: "check-mark", ariaHidden: "true" }, isGood ? "✓" : "!"),
    element("div", {}, isGood ? goodWords : `${countOf(number, thing)} ${badWords}`, isGood ? null : list),
  );
}

function skippedList(name, health) {
  const items = health.skipped.map(({ step, reason }) => `step ${formatStep(step)}${reason ? `: ${reason}` : ""}`);
  return listOf(`${name} skipped`, items, health.num_skipped);
}

function spikeList(name, health) {
  const items = health.spikes.map(
    ({ step, loss, expected }) =>
      `step ${formatStep(step)}: ${formatNumber(loss)} where ${formatNumber(expected)} was to be expected`,
  );
  return listOf(`${name} spikes`, items, health.num_spikes);
}

function listOf(key, items, total) {
  const asList = (texts) => element("ul", { className: "events" }, ...texts.map((text) => element("li", {}, text)));
  const shown = asList(items.slice(-SHOWN_AT_ONCE).reverse());
  if (items.length <= SHOWN_AT_ONCE) return shown;
  const rest = items.slice(0, -SHOWN_AT_ONCE).reverse();
  const hidden = total > items.length ? ` of ${formatStep(total)}` : "";
  return element(
    "div",
    {},
    shown,
    element(
      "details",
      { dataset: { key } },
      element("summary", {}, `${countOf(rest.length, "earlier one")}${hidden}`),
      asList(rest),
    ),
  );
}

function bestBadge() {
  return element("span", { className: "badge accent" }, "best");
}

function checkpointTable(checkpoints, store) {
  if (checkpoints.length === 0) return element("p", { className: "hint" }, "No checkpoint has been written yet.");
  const rows = checkpoints.map(({ step, num_bytes: size, written, validation_loss: loss, is_best: isBest }) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, formatStep(step), isBest && bestBadge()),
      element("td", {}, formatNumber(loss)),
      element("td", {}, formatBytes(size)),
      element("td", {}, agoText(written, store)),
    ),
  );
  const head = ["Step", "Validation loss", "Size", "Written"].map((text) => element("th", { scope: "col" }, text));
  return element(
    "div",
    { className: "table-scroll" },
    element(
      "table",
      { className: "metrics-table checkpoints" },
      element("caption", {}, "Checkpoints"),
      element("thead", {}, element("tr", {}, ...head)),
      element("tbody", {}, ...rows),
    ),
  );
}
