// A table with one column per selected run: results, health, settings, machine. With several runs it
// can be limited to the rows that differ.

import { countOf, element } from "./shell.js";
import { formatAgo, formatBytes, formatDuration, formatNumber, formatPercent } from "./run_format.js";
import { UNKNOWN, formatShort, formatStep, isNumber, swatch } from "./run_format.js";

const OF_THE_MACHINE = ["groundup", "torch", "python", "device", "num_threads", "git_commit", "data"];
const SHOWN_AT_ONCE = 8;

export class RunTable {
  #runs = [];
  #shown = "";

  constructor(root) {
    this.onlyDifferent = element("input", { type: "checkbox" });
    this.filter = element("input", { type: "search", ariaLabel: "Filter by name", placeholder: "Filter by name" });
    this.switch = element("label", { className: "switch" }, this.onlyDifferent, "Only differences");
    this.table = element("table", { className: "run-table" });
    const bar = element("div", { className: "row table-bar" }, this.filter, this.switch);
    const frame = { className: "card table-scroll", tabIndex: 0, role: "region", ariaLabel: "Selected runs" };
    root.append(bar, element("div", frame, this.table));
    bar.addEventListener("input", () => this.#show());
  }

  /** runs: [{ run, slot, lines, details, age }] */
  render(runs) {
    this.#runs = runs.filter(({ details }) => details !== undefined);
    this.#show();
  }

  #show() {
    const runs = this.#runs;
    this.switch.hidden = runs.length < 2;
    const onlyDifferent = runs.length > 1 && this.onlyDifferent.checked;
    const wanted = this.filter.value.trim().toLowerCase();
    const groups = [
      ["Results", runs.map(resultsOf)],
      ["Health", runs.map(healthOf)],
      ["Settings", runs.map(({ details }) => showAll(details.settings))],
      ["Machine and data", runs.map(({ details }) => showAll(flat(pick(details.environment))))],
    ].map(([title, columns]) => [title, rowsOf(columns, wanted, onlyDifferent)]);
    const names = runs.map(({ run, slot }) => [run.name, slot]);
    const state = JSON.stringify([names, groups]);
    if (state === this.#shown) return;
    this.#shown = state;
    const heads = names.map(([name, slot]) => element("th", { scope: "col" }, swatch(slot), name));
    const parts = groups
      .filter(([, rows]) => rows.length > 0)
      .map(([title, rows]) =>
        element(
          "tbody",
          {},
          element("tr", {}, element("th", { scope: "rowgroup", colSpan: runs.length + 1 }, title)),
          ...rows.map((row) => buildRow(row, runs.length > 1)),
        ),
      );
    const head = element("tr", {}, element("th", { scope: "col" }, "Run"), ...heads);
    this.table.replaceChildren(element("thead", {}, head), ...parts);
  }
}

function rowsOf(columns, wanted, onlyDifferent) {
  const names = [...new Set(columns.flatMap((column) => Object.keys(column)))];
  return names
    .map((name) => {
      const values = columns.map((column) => column[name] ?? UNKNOWN);
      return { name, values, isDifferent: values.some((value) => value !== values[0]) };
    })
    .filter(({ name }) => name.toLowerCase().includes(wanted))
    .filter(({ isDifferent }) => isDifferent || !onlyDifferent);
}

function buildRow({ name, values, isDifferent }, isComparison) {
  return element(
    "tr",
    { className: isComparison && isDifferent ? "different" : "" },
    element("th", { scope: "row" }, name),
    ...values.map((value) => element("td", {}, value)),
  );
}

function resultsOf({ run, lines, details }) {
  const newest = (metric) => lines.findLast((line) => isNumber(line[metric]))?.[metric];
  const best = details.health.best;
  return {
    "Validation loss": formatNumber(run.validation_loss),
    "Best validation loss": best ? `${formatNumber(best.value)} at step ${formatStep(best.step)}` : UNKNOWN,
    "Training loss": formatNumber(run.loss),
    "Bits per byte": formatNumber(lines.findLast((line) => line.validation_loss === run.validation_loss)?.bits_per_byte),
    Steps: `${formatStep(run.step ?? 0)}${run.num_steps ? ` of ${formatStep(run.num_steps)}` : ""}`,
    Tokens: formatShort(run.tokens),
    Time: formatDuration(run.wall_seconds),
    "Time left": run.status === "running" ? formatDuration(secondsLeft(run)) : UNKNOWN,
    "Tokens per second": formatShort(run.tokens_per_second),
    MFU: formatPercent(newest("mfu")),
    Parameters: formatShort(run.num_parameters),
  };
}

function secondsLeft(run) {
  if (!run.num_steps || !run.step || !run.tokens_per_second || !run.tokens) return null;
  return ((run.num_steps - run.step) * (run.tokens / run.step)) / run.tokens_per_second;
}

function healthOf({ run, details, age }) {
  const { health } = details;
  const skipped = health.skipped.map(({ step, reason }) => `step ${formatStep(step)}${reason ? `: ${reason}` : ""}`);
  const best = health.checkpoints.find((one) => one.is_best);
  const sizes = health.checkpoints.map((one) => `step ${formatStep(one.step)}, ${formatBytes(one.num_bytes)}`);
  return {
    State: `${run.status}: ${run.message}`,
    "Last update": formatAgo(age),
    "Skipped steps": listOf(health.num_skipped, skipped),
    "Unreadable lines": String(health.num_damaged_lines),
    "Peak memory": formatBytes(health.memory_bytes),
    Checkpoints: listOf(sizes.length, sizes),
    "Best checkpoint": best ? `step ${formatStep(best.step)}` : UNKNOWN,
  };
}

/** "2 (step 9: …; step 5: …)": the number of items and the newest few. */
function listOf(count, items) {
  if (count === 0) return "none";
  const rest = count > SHOWN_AT_ONCE ? `; ${countOf(count - SHOWN_AT_ONCE, "earlier one")}` : "";
  return `${formatStep(count)} (${items.slice(-SHOWN_AT_ONCE).reverse().join("; ")}${rest})`;
}

function pick(environment) {
  const present = OF_THE_MACHINE.filter((name) => name in environment);
  return Object.fromEntries(present.map((name) => [name, environment[name]]));
}

function flat(values, prefix = "") {
  const isBranch = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
  const parts = Object.entries(values).map(([name, value]) =>
    isBranch(value) ? flat(value, `${prefix}${name}.`) : { [prefix + name]: value },
  );
  return Object.assign({}, ...parts);
}

function showAll(values) {
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [name, showValue(value)]));
}

function showValue(value) {
  if (value === null) return "none";
  if (Array.isArray(value)) return value.map(showValue).join(", ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
