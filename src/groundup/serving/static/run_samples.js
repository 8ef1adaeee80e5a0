// What the runs wrote while they learned: one moment at a time, chosen runs side by side.

import { element } from "./shell.js";
import { formatNumber, formatStep, isNumber, swatch } from "./run_format.js";

export class RunSamples {
  constructor(root) {
    this.slider = element("input", { type: "range", id: "sample-step", min: 0, step: 1 });
    this.output = element("output", { className: "sample-step", htmlFor: "sample-step" });
    this.earlier = element("button", { className: "button small", type: "button" }, "Earlier");
    this.later = element("button", { className: "button small", type: "button" }, "Later");
    this.cards = element("div", { className: "sample-cards" });
    this.none = element(
      "p",
      { className: "card hint" },
      "None of the chosen runs has written samples. Train with ",
      element("code", {}, "--samples.every-steps 100"),
      " to read along while a model learns.",
    );
    this.bar = element(
      "div",
      { className: "card sample-bar" },
      element("label", { htmlFor: "sample-step" }, "Generated after"),
      this.output,
      this.slider,
      element("span", { className: "sample-buttons" }, this.earlier, this.later),
    );
    root.append(this.bar, this.none, this.cards);
    this.steps = [];
    this.runs = [];
    this.slider.addEventListener("input", () => this.#show());
    this.earlier.addEventListener("click", () => this.#move(-1));
    this.later.addEventListener("click", () => this.#move(1));
  }

  /** runs: [{ run, slot, lines, details }] */
  render(runs) {
    const wasAtEnd = this.steps.length === 0 || Number(this.slider.value) === this.steps.length - 1;
    const before = this.steps[Number(this.slider.value)];
    const all = runs.flatMap(({ details }) => details?.samples.map((sample) => sample.step) ?? []);
    this.steps = [...new Set(all)].sort((one, other) => one - other);
    this.runs = runs;
    this.bar.hidden = this.cards.hidden = this.steps.length === 0;
    this.none.hidden = this.steps.length > 0;
    this.slider.max = String(Math.max(0, this.steps.length - 1));
    const kept = this.steps.findLastIndex((step) => step <= before);
    this.slider.value = String(wasAtEnd || kept < 0 ? this.steps.length - 1 : kept);
    this.#show();
  }

  #move(by) {
    this.slider.value = String(Number(this.slider.value) + by);
    this.#show();
  }

  #show() {
    const index = Number(this.slider.value);
    const step = this.steps[index];
    if (step === undefined) return;
    this.output.textContent = `step ${formatStep(step)}`;
    this.slider.setAttribute("aria-valuetext", `step ${formatStep(step)}, ${index + 1} of ${this.steps.length}`);
    this.earlier.disabled = index === 0;
    this.later.disabled = index === this.steps.length - 1;
    const known = this.runs.map(({ run, slot, details }) => [run.name, slot, details?.samples]);
    const state = JSON.stringify([step, known]);
    if (state === this.shown) return;
    this.shown = state;
    this.cards.replaceChildren(...this.runs.map((run) => card(run, step)));
  }
}

/** The newest that a run had written by then. */
function card({ run, slot, lines, details }, step) {
  const earlier = (details?.samples ?? []).filter((sample) => sample.step <= step);
  const newest = earlier.filter((sample) => sample.step === earlier.at(-1).step);
  const title = element("h2", { className: "sample-title" }, swatch(slot), element("span", {}, run.name));
  if (newest.length === 0) {
    const words = details?.samples.length === 0 ? "This run wrote no samples." : "Nothing written by then.";
    const hint = element("p", { className: "hint" }, words);
    return element("section", { className: "card sample-card" }, title, hint);
  }
  const loss = lines.findLast((line) => line.step <= newest[0].step && isNumber(line.loss))?.loss;
  const about = `step ${formatStep(newest[0].step)}${isNumber(loss) ? ` · loss ${formatNumber(loss)}` : ""}`;
  return element(
    "section",
    { className: "card sample-card" },
    element("div", { className: "sample-head" }, title, element("span", { className: "sample-about" }, about)),
    ...newest.map(({ prompt, text }) =>
      element("p", { className: "sample-text" }, element("span", { className: "sample-prompt" }, prompt), text),
    ),
  );
}
