// The sampling settings of one column: their fields, their keys in the URL and in a request.

import { element } from "./shell.js";

// A field at its `off` value is left out of the request. Sliders move in steps; the number beside
// them takes any value, and the server says which it refuses.
const FIELDS = [
  {
    name: "temperature",
    label: "Temperature",
    initial: "1",
    slider: { min: 0, max: 2, step: 0.05 },
    help: "Below 1: likelier tokens; above 1: more random; 0 is greedy.",
  },
  {
    name: "top_p",
    label: "Top-p",
    initial: "1",
    off: 1,
    slider: { min: 0.05, max: 1, step: 0.05 },
    help: "Samples from the fewest likeliest tokens whose probabilities sum to this; 1 keeps all.",
  },
  {
    name: "min_p",
    label: "Min-p",
    initial: "0",
    off: 0,
    slider: { min: 0, max: 1, step: 0.01 },
    help: "Drops tokens below this fraction of the likeliest one's probability; 0 keeps all.",
  },
  {
    name: "repetition_penalty",
    label: "Repetition penalty",
    initial: "1",
    off: 1,
    slider: { min: 1, max: 2, step: 0.05 },
    help: "Above 1, tokens that the text already holds become less likely.",
  },
  {
    name: "top_k",
    label: "Top-k",
    initial: "",
    placeholder: "off",
    note: "likeliest tokens kept",
    help: "Samples from this many of the likeliest tokens; empty keeps all.",
  },
  {
    name: "max_tokens",
    label: "Max tokens",
    initial: "256",
    note: "the most to generate",
    help: "Generates at most this many tokens; the end of the text usually comes first.",
  },
  {
    name: "seed",
    label: "Seed",
    initial: "",
    placeholder: "random",
    note: "repeats a text",
    help: "The same seed gives the same text; empty takes a new one each time.",
  },
  {
    name: "stop",
    label: "Stop strings",
    initial: "",
    lines: true,
    placeholder: "one a line",
    note: "\\n is a line break",
    help: "Ends the text before any of these, one a line; \\n stands for a line break.",
  },
];
const INITIAL = Object.fromEntries(FIELDS.map(({ name, initial }) => [name, initial]));

/** The fields of one column. `prefix` keeps ids and URL keys of two columns apart. */
export class Settings {
  #inputs = new Map();
  #prefix;
  #initial;

  constructor(prefix, { grid, digest, initial, onChange }) {
    this.#prefix = prefix;
    this.#initial = { ...INITIAL, ...initial };
    for (const field of FIELDS) grid.append(this.#buildField(field));
    this.setAll(this.#initial);
    const changed = () => {
      digest.textContent = this.#describe();
      onChange();
    };
    grid.addEventListener("input", changed);
    digest.textContent = this.#describe();
  }

  /** The part of a request's body that these settings make; `seed` stands in for an empty one. */
  toRequest(seed) {
    const body = { seed };
    for (const field of FIELDS) {
      const text = this.#inputs.get(field.name).value;
      if (field.lines) {
        const lines = text.split("\n").filter((line) => line !== "");
        if (lines.length > 0) body.stop = lines.map((line) => line.replaceAll("\\n", "\n"));
      } else if (text.trim() !== "" && Number(text) !== field.off) {
        body[field.name] = Number(text);
      }
    }
    return body;
  }

  /** Adds what differs from the initial settings to the URL's parameters. */
  writeTo(parameters) {
    for (const { name } of FIELDS) {
      const { value } = this.#inputs.get(name);
      if (value !== this.#initial[name]) parameters.set(this.#prefix + name, value);
    }
  }

  readFrom(parameters) {
    const given = FIELDS.map(({ name }) => [name, parameters.get(this.#prefix + name)]);
    this.setAll(
      Object.fromEntries(given.map(([name, value]) => [name, value ?? this.#initial[name]])),
    );
  }

  setAll(values) {
    for (const [name, value] of Object.entries(values)) {
      const input = this.#inputs.get(name);
      input.value = value;
      input.dispatchEvent(new Event("input", { bubbles: true }));
    }
  }

  #buildField(field) {
    const id = this.#prefix + field.name;
    const shared = { id, placeholder: field.placeholder ?? "", "aria-describedby": `${id}-help` };
    const input = field.lines
      ? element("textarea", { ...shared, rows: 1, spellcheck: false })
      : element("input", { ...shared, type: "number", inputMode: "decimal", step: "any" });
    this.#inputs.set(field.name, input);
    return element(
      "div",
      { className: "field setting", title: field.help },
      element("label", { className: "field-label", htmlFor: id }, field.label),
      input,
      field.slider
        ? buildSlider(field, input)
        : element("span", { className: "field-hint", ariaHidden: "true" }, field.note),
      element("span", { id: `${id}-help`, className: "visually-hidden" }, field.help),
    );
  }

  #describe() {
    const parts = [];
    for (const { name, label, off } of FIELDS) {
      const value = this.#inputs.get(name).value.trim();
      if (value === "" || Number(value) === off) continue;
      parts.push(`${label.toLowerCase()} ${value.split("\n").join(", ")}`);
    }
    return parts.join(" · ");
  }
}

function buildSlider({ label, slider: range }, input) {
  const slider = element("input", { type: "range", ...range, ariaLabel: `${label}, slider` });
  slider.addEventListener("input", () => {
    input.value = slider.value;
  });
  input.addEventListener("input", () => {
    slider.value = input.value;
  });
  return slider;
}
