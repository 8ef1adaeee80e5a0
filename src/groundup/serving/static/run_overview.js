// The metrics above the plots: a few large ones of a single run, a table when several are compared.

import { element } from "./shell.js";
import { UNKNOWN, formatDuration, formatNumber, formatPercent, formatShort, formatStep } from "./run_format.js";
import { agoText, isNumber, refreshAgo, statusBadge, swatch } from "./run_format.js";

const COLUMNS = [
  ...["Run", "Validation loss", "Best", "Training loss", "Steps", "Tokens", "Time", "Tokens/s", "MFU"],
  "Parameters",
];

/** runs: [{ run, slot, lines, details }] */
export function renderOverview(root, runs, store) {
  const state = JSON.stringify(
    runs.map(({ run, slot, lines, details }) => [run, slot, lines.length, details?.health.best]),
  );
  if (root.dataset.shown === state) {
    refreshAgo(root, store);
    return;
  }
  root.dataset.shown = state;
  if (runs.length === 0) {
    const hint = "Tick a run in the list to see its curves.";
    root.replaceChildren(element("p", { className: "card hint" }, hint));
  } else if (runs.length === 1) {
    root.replaceChildren(oneRun(runs[0], store));
  } else {
    // The frame stays, and with it how far it is scrolled and whether it has the focus.
    const frame = root.querySelector(".table-scroll") ?? makeFrame();
    frame.replaceChildren(severalRuns(runs));
    if (frame.parentElement !== root) root.replaceChildren(frame);
  }
}

function makeFrame() {
  const frame = element("div", { className: "card table-scroll", tabIndex: 0, role: "region" });
  frame.ariaLabel = "Comparison of the chosen runs";
  return frame;
}

function oneRun({ run, slot, lines, details }, store) {
  const best = details?.health.best.validation_loss;
  const isTrouble = ["failed", "stalled"].includes(run.status);
  const bits = newest(lines, "bits_per_byte");
  const tiles = [
    tile("Validation loss", formatNumber(run.validation_loss), bestWords(best, run)),
    tile("Training loss", formatNumber(run.loss), isNumber(bits) && `${formatNumber(bits)} bits per byte`),
    tile("Speed", rateWords(run.tokens_per_second), mfuWords(lines)),
    tile("Seen", formatShort(run.tokens), "tokens"),
    tile("Time", formatDuration(run.wall_seconds), leftWords(run)),
    tile("Model", formatShort(run.num_parameters), "parameters"),
  ];
  return element(
    "div",
    { className: "card overview-one" },
    element(
      "div",
      { className: "overview-head" },
      element("h2", {}, swatch(slot), element("span", { className: "overview-name" }, run.name)),
      statusBadge(run.status),
      element("span", { className: "overview-when" }, stepWords(run), agoText(run.updated, store)),
    ),
    progressBar(run),
    isTrouble && element("p", { className: "overview-message" }, run.message),
    element("dl", { className: "tiles" }, ...tiles),
  );
}

function severalRuns(runs) {
  // Losses on different texts do not compare.
  const isOneCorpus = new Set(runs.map(({ details }) => corpusOf(details))).size === 1;
  const least = isOneCorpus ? Math.min(...runs.map(({ run }) => run.validation_loss ?? Infinity)) : null;
  const rows = runs.map(({ run, slot, lines, details }) => {
    const isLeast = run.validation_loss !== null && run.validation_loss === least;
    const cells = [
      formatNumber(run.validation_loss),
      formatNumber(details?.health.best.validation_loss?.value),
      formatNumber(run.loss),
      formatStep(run.step),
      formatShort(run.tokens),
      formatDuration(run.wall_seconds),
      formatShort(run.tokens_per_second),
      formatPercent(newest(lines, "mfu")),
      formatShort(run.num_parameters),
    ];
    const name = element("span", { className: "compare-name" }, run.name);
    const label = element("span", { className: "compare-run" }, swatch(slot), name);
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, label),
      ...cells.map((text, column) => element("td", { className: isLeast && column === 0 ? "least" : "" }, text)),
    );
  });
  return element(
    "table",
    { className: "metrics-table compare" },
    element("thead", {}, element("tr", {}, ...COLUMNS.map((text) => element("th", { scope: "col" }, text)))),
    element("tbody", {}, ...rows),
  );
}

/** What tells the data of a run from others: the hash of its ids, or where they were. */
function corpusOf(details) {
  return details?.environment.data?.content ?? details?.settings["data.shards"];
}

function tile(title, value, note) {
  return element(
    "div",
    { className: "tile" },
    element("dt", {}, title),
    element(
      "dd",
      {},
      element("span", { className: "tile-value" }, value),
      note && element("span", { className: "tile-note" }, note),
    ),
  );
}

function progressBar(run) {
  if (!run.num_steps || run.step === null) return null;
  const bar = element("progress", { className: "run-progress", max: run.num_steps });
  bar.value = Math.min(run.step, run.num_steps);
  bar.ariaLabel = `Step ${formatStep(run.step)} of ${formatStep(run.num_steps)}`;
  bar.dataset.status = run.status;
  return bar;
}

function stepWords(run) {
  return `step ${formatStep(run.step)}${run.num_steps ? ` of ${formatStep(run.num_steps)}` : ""} · `;
}

function bestWords(best, run) {
  if (!best) return run.status === "running" ? "not measured yet" : "not measured";
  return best.value === run.validation_loss ? "the best so far" : `best ${formatNumber(best.value)} at ${formatStep(best.step)}`;
}

function rateWords(rate) {
  return isNumber(rate) ? `${formatShort(rate)}/s` : UNKNOWN;
}

function mfuWords(lines) {
  const mfu = newest(lines, "mfu");
  return isNumber(mfu) ? `tokens, ${formatPercent(mfu)} MFU` : "tokens";
}

function leftWords(run) {
  const seconds = secondsLeft(run);
  return run.status === "running" && seconds !== null ? `${formatDuration(seconds)} left` : "of training";
}

export function secondsLeft(run) {
  if (!run.num_steps || !run.step || !run.tokens_per_second || !run.tokens) return null;
  return ((run.num_steps - run.step) * (run.tokens / run.step)) / run.tokens_per_second;
}

function newest(lines, metric) {
  return lines.findLast((line) => isNumber(line[metric]))?.[metric];
}
