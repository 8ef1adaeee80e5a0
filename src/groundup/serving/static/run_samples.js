// Texts that the selected runs generated during training, side by side, one step at a time.

import { element } from "./shell.js";
import { formatNumber, formatStep, isNumber, swatch } from "./run_format.js";

export class RunSamples {
  #steps = [];
  #runs = [];
  #shown = "";

  constructor(root) {
    this.slider = element("input", { type: "range", id: "sample-step", min: 0, step: 1 });
    this.output = element("output", { className: "sample-step", htmlFor: "sample-step" });
    this.cards = element("div", { className: "sample-cards" });
    const label = element("label", { htmlFor: "sample-step" }, "Generated after");
    this.bar = element("div", { className: "card row sample-bar" }, label, this.output, this.slider);
    this.none = element(
      "p",
      { className: "card hint" },
      "The selected runs have no samples. Train with ",
      element("code", {}, "--samples.every-steps 100"),
      " to follow a model's progress here.",
    );
    root.append(this.bar, this.none, this.cards);
    this.slider.addEventListener("input", () => this.#show());
  }

  /** runs: [{ run, slot, lines, details }] */
  render(runs) {
    const at = Number(this.slider.value);
    const wasAtEnd = at >= this.#steps.length - 1;
    const before = this.#steps[at];
    const all = runs.flatMap(({ details }) => details?.samples.map((sample) => sample.step) ?? []);
    this.#steps = [...new Set(all)].sort((one, other) => one - other);
    this.#runs = runs;
    const isEmpty = this.#steps.length === 0;
    this.bar.hidden = this.cards.hidden = isEmpty;
    this.none.hidden = !isEmpty;
    this.slider.max = String(Math.max(0, this.#steps.length - 1));
    const kept = this.#steps.findLastIndex((step) => step <= before);
    this.slider.value = String(wasAtEnd || kept < 0 ? this.#steps.length - 1 : kept);
    if (!isEmpty) this.#show();
  }

  #show() {
    const step = this.#steps[Number(this.slider.value)];
    this.output.textContent = `step ${formatStep(step)}`;
    this.slider.setAttribute("aria-valuetext", this.output.textContent);
    const state = JSON.stringify([step, this.#runs.map(({ run, slot, details }) => [run.name, slot, details?.samples])]);
    if (state === this.#shown) return;
    this.#shown = state;
    this.cards.replaceChildren(...this.#runs.map((run) => card(run, step)));
  }
}

/** The run's newest samples at that step. */
function card({ run, slot, lines, details }, step) {
  const earlier = (details?.samples ?? []).filter((sample) => sample.step <= step);
  const newest = earlier.filter((sample) => sample.step === earlier.at(-1).step);
  const loss = lines.findLast((line) => line.step <= newest[0]?.step && isNumber(line.loss))?.loss;
  const words = [
    newest.length === 0 ? "no samples yet" : `step ${formatStep(newest[0].step)}`,
    isNumber(loss) && `loss ${formatNumber(loss)}`,
  ];
  return element(
    "section",
    { className: "card stack" },
    element("h2", {}, swatch(slot), run.name),
    element("p", { className: "hint" }, words.filter(Boolean).join(" · ")),
    ...newest.map(({ prompt, text }) =>
      element("p", { className: "sample-text" }, element("span", { className: "prompt-echo" }, prompt), text),
    ),
  );
}
