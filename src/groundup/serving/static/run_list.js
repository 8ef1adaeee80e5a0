// The table of all runs with their status. Rows are updated in place, so that updates do not lose
// focus or scroll position.

import { element } from "./shell.js";
import { formatNumber, formatStep, isNumber } from "./run_format.js";
import { MAX_CHOSEN } from "./run_store.js";

export class RunList {
  constructor(store, { onToggle, onOnly }) {
    this.store = store;
    this.onToggle = onToggle;
    this.onOnly = onOnly;
    this.rows = new Map();
    this.body = document.getElementById("runs-rows");
    this.filter = document.getElementById("runs-filter");
    this.sort = document.getElementById("runs-sort");
    this.none = document.getElementById("runs-none");
    this.filter.addEventListener("input", () => this.render(this.chosen));
    this.sort.addEventListener("change", () => this.render(this.chosen));
    this.chosen = [];
  }

  render(chosen) {
    this.chosen = chosen;
    const wanted = this.filter.value.trim().toLowerCase();
    const runs = sorted(this.store.runs, this.sort.value);
    const shown = runs.filter((run) => run.name.toLowerCase().includes(wanted));
    const names = new Set(shown.map((run) => run.name));
    for (const [name, row] of this.rows) {
      if (!names.has(name)) {
        row.root.remove();
        this.rows.delete(name);
      }
    }
    shown.forEach((run, position) => {
      const row = this.rows.get(run.name) ?? this.#makeRow(run.name);
      if (this.body.children[position] !== row.root) {
        this.body.insertBefore(row.root, this.body.children[position] ?? null);
      }
      this.#update(row, run);
    });
    this.none.hidden = shown.length > 0;
  }

  #makeRow(name) {
    const check = element("input", { type: "checkbox", className: "run-check" });
    const only = element("button", { type: "button", className: "run-only", ariaLabel: `Show only ${name}` }, "Only");
    const row = {
      check,
      status: element("span", { className: "status" }),
      progress: element("span", {}),
      loss: element("span", { className: "run-loss" }),
      lossKind: element("span", { className: "hint" }),
    };
    const title = element("span", { className: "run-name cut" }, name);
    const about = element("span", { className: "hint run-about" }, row.status, row.progress);
    const label = element("label", {}, check, element("span", { className: "run-text" }, title, about));
    row.root = element(
      "tr",
      {},
      element("th", { scope: "row" }, label),
      element("td", { className: "run-number" }, row.loss, row.lossKind, only),
    );
    check.addEventListener("change", () => this.onToggle(name, check.checked));
    only.addEventListener("click", () => this.onOnly(name));
    this.rows.set(name, row);
    return row;
  }

  #update(row, run) {
    const isChosen = this.chosen.includes(run.name);
    row.check.checked = isChosen;
    row.check.disabled = !isChosen && this.chosen.length >= MAX_CHOSEN;
    row.root.classList.toggle("chosen", isChosen);
    if (isChosen) row.check.dataset.slot = String(this.store.slot(run.name, this.chosen));
    else delete row.check.dataset.slot;
    row.status.dataset.status = run.status;
    setText(row.status, run.status);
    setText(row.progress, progressOf(run));
    const isMeasured = isNumber(run.validation_loss);
    setText(row.loss, formatNumber(isMeasured ? run.validation_loss : run.loss));
    setText(row.lossKind, isMeasured ? "validation" : isNumber(run.loss) ? "training" : "");
  }
}

function progressOf(run) {
  const steps = run.step === null ? "" : `${formatStep(run.step)} steps`;
  if (run.status === "finished" || !run.num_steps) return steps;
  return run.step === null ? `of ${formatStep(run.num_steps)} steps` : `${formatStep(run.step)} of ${formatStep(run.num_steps)}`;
}

function sorted(runs, order) {
  const best = (run) => run.validation_loss ?? run.loss ?? Infinity;
  const compare = {
    newest: (one, other) => (other.started ?? 0) - (one.started ?? 0),
    loss: (one, other) => (best(one) === best(other) ? 0 : best(one) - best(other)),
    name: (one, other) => one.name.localeCompare(other.name, "en", { numeric: true }),
  }[order];
  return [...runs].sort(compare);
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
