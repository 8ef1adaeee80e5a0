// The settings of the chosen runs: all of one, or only what differs between several.

import { element } from "./shell.js";
import { swatch } from "./run_format.js";

const OF_THE_MACHINE = ["groundup", "torch", "python", "device", "num_threads", "git_commit", "data"];

export class RunSettings {
  constructor(root) {
    this.onlyDifferent = element("input", { type: "checkbox", checked: true });
    this.filter = element("input", { type: "search", id: "settings-filter", autocomplete: "off" });
    this.filter.placeholder = "Filter by name";
    this.switch = element("label", { className: "switch" }, this.onlyDifferent, "Only what differs");
    this.note = element("p", { className: "settings-note", role: "status" });
    this.body = element("div", { className: "settings-body" });
    const words = "Show settings whose name contains";
    const label = element("label", { className: "visually-hidden", htmlFor: "settings-filter" }, words);
    const field = element("div", { className: "field settings-filter" }, label, this.filter);
    root.append(element("div", { className: "settings-bar" }, field, this.switch, this.note), this.body);
    this.runs = [];
    for (const input of [this.onlyDifferent, this.filter]) input.addEventListener("input", () => this.#show());
  }

  /** runs: [{ run, slot, lines, details }] */
  render(runs) {
    this.runs = runs.filter(({ details }) => details !== undefined);
    this.#show();
  }

  #show() {
    const isComparison = this.runs.length > 1;
    const onlyDifferent = isComparison && this.onlyDifferent.checked;
    const wanted = this.filter.value.trim().toLowerCase();
    this.switch.hidden = !isComparison;
    const groups = [
      { title: "Settings", rows: rowsOf(this.runs.map(({ details }) => details.settings), ["name"]) },
      { title: "Machine and data", rows: rowsOf(this.runs.map(({ details }) => flat(pick(details.environment)))) },
    ];
    const kept = groups.map(({ title, rows }) => ({
      title,
      rows: rows
        .filter((row) => row.name.toLowerCase().includes(wanted))
        .filter((row) => !onlyDifferent || row.isDifferent),
    }));
    const state = JSON.stringify([onlyDifferent, this.runs.map(({ run, slot }) => [run.name, slot]), kept]);
    if (state === this.shown) return;
    this.shown = state;
    const numDifferent = groups[0].rows.filter((row) => row.isDifferent).length;
    this.note.textContent = isComparison ? differenceWords(numDifferent, groups[0].rows.length) : "";
    const filled = kept.filter(({ rows }) => rows.length > 0);
    this.body.replaceChildren(...filled.map((group) => table(group, this.runs, isComparison)));
  }
}

function rowsOf(columns, leaveOut = []) {
  const names = [...new Set(columns.flatMap((column) => Object.keys(column)))];
  return names
    .filter((name) => !leaveOut.includes(name))
    .map((name) => {
      const exact = columns.map((column) => JSON.stringify(column[name]));
      const values = columns.map((column) => show(column[name]));
      return { name, values, isDifferent: exact.some((value) => value !== exact[0]) };
    });
}

function table({ title, rows }, runs, isComparison) {
  const head = runs.map(({ run, slot }) => {
    const name = element("span", { className: "compare-name" }, run.name);
    return element("th", { scope: "col" }, element("span", { className: "compare-run" }, swatch(slot), name));
  });
  const made = element(
    "table",
    { className: runs.length <= 3 ? "settings-table narrow" : "settings-table" },
    element("caption", {}, title),
    element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "Name"), ...head)),
    element(
      "tbody",
      {},
      ...rows.map(({ name, values, isDifferent }) =>
        element(
          "tr",
          { className: isComparison && isDifferent ? "different" : "" },
          element("th", { scope: "row" }, name),
          ...values.map((value) => element("td", {}, value)),
        ),
      ),
    ),
  );
  made.style.setProperty("--num-runs", String(runs.length));
  return element("section", { className: "card table-scroll", tabIndex: 0, role: "region", ariaLabel: title }, made);
}

function differenceWords(numDifferent, numAll) {
  if (numAll === 0) return "No settings could be read.";
  if (numDifferent === 0) return `All ${numAll} settings are the same.`;
  return `${numDifferent} of ${numAll} settings ${numDifferent === 1 ? "differs" : "differ"}.`;
}

function pick(environment) {
  const present = OF_THE_MACHINE.filter((name) => name in environment);
  return Object.fromEntries(present.map((name) => [name, environment[name]]));
}

function flat(values, prefix = "") {
  return Object.assign(
    {},
    ...Object.entries(values).map(([name, value]) =>
      value !== null && typeof value === "object" && !Array.isArray(value)
        ? flat(value, `${prefix}${name}.`)
        : { [prefix + name]: value },
    ),
  );
}

function show(value) {
  if (value === undefined) return "not set";
  if (value === null) return "none";
  if (Array.isArray(value)) return value.map(show).join(", ");
  if (/^sha256:[0-9a-f]{64}$/.test(value)) return `${value.slice(0, 19)}…`;
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
