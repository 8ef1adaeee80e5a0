// The sampling settings of one column: input fields, URL parameters and request fields.

import { element } from "./shell.js";

// A field at its `off` value is omitted from the summary line. The server validates the values.
const FIELDS = [
  { name: "temperature", label: "Temperature", initial: "1", step: 0.1, help: "0: greedy; above 1: more random" },
  { name: "top_p", label: "Top-p", initial: "1", off: 1, step: 0.05, help: "total probability kept; 1: all" },
  { name: "min_p", label: "Min-p", initial: "0", off: 0, step: 0.01, help: "minimum relative to the best" },
  { name: "repetition_penalty", label: "Repeat penalty", initial: "1", off: 1, step: 0.05, help: "above 1: fewer repeats" },
  { name: "top_k", label: "Top-k", initial: "", step: 1, placeholder: "off", help: "number of tokens kept" },
  { name: "max_tokens", label: "Max tokens", initial: "256", step: 1, help: "limit of the output" },
  { name: "seed", label: "Seed", initial: "", step: 1, placeholder: "random", help: "reproduces an output" },
  { name: "stop", label: "Stop strings", initial: "", placeholder: "one per line", help: "\\n is a line break" },
];

/** The fields of one column; `prefix` makes their ids and URL parameters unique. */
export class Settings {
  #inputs = new Map();
  #prefix;
  #initial;
  #digest;
  #fields;

  /** names: the fields to show. Default: all. */
  constructor(prefix, { root, initial = {}, onChange = () => {}, names }) {
    this.#fields = FIELDS.filter(({ name }) => names?.includes(name) ?? true);
    this.#prefix = prefix;
    this.#initial = { ...Object.fromEntries(FIELDS.map((field) => [field.name, field.initial])), ...initial };
    this.#digest = root.querySelector(".settings-digest");
    const grid = root.querySelector(".settings-grid");
    grid.append(...this.#fields.map((field) => this.#buildField(field)));
    grid.addEventListener("input", () => {
      this.#describe();
      onChange();
    });
    this.readFrom(new URLSearchParams());
  }

  /** The settings as request fields; `seed` is the default seed. */
  toRequest(seed) {
    const body = { seed };
    for (const { name } of this.#fields) {
      const text = this.#inputs.get(name).value;
      if (name === "stop") {
        const lines = text.split("\n").filter((line) => line !== "");
        if (lines.length > 0) body.stop = lines.map((line) => line.replaceAll("\\n", "\n"));
      } else if (text.trim() !== "") {
        body[name] = Number(text);
      }
    }
    return body;
  }

  /** Adds the values that differ from the initial ones to the URL parameters. */
  writeTo(parameters) {
    for (const [name, { value }] of this.#inputs) {
      if (value !== this.#initial[name]) parameters.set(this.#prefix + name, value);
    }
  }

  /** Sets a model's defaults as initial values; fields that the user changed keep theirs. */
  setInitial(values = {}) {
    for (const [name, input] of this.#inputs) {
      if (values[name] === undefined) continue;
      const isAsItWas = input.value === this.#initial[name];
      this.#initial[name] = String(values[name] ?? "");
      if (isAsItWas) input.value = this.#initial[name];
    }
    this.#describe();
  }

  readFrom(parameters) {
    for (const [name, input] of this.#inputs) {
      input.value = parameters.get(this.#prefix + name) ?? this.#initial[name];
    }
    this.#describe();
  }

  #buildField({ name, label, step, placeholder = "", help }) {
    const id = this.#prefix + name;
    const shared = { id, placeholder, "aria-describedby": `${id}-help` };
    const input =
      name === "stop"
        ? element("textarea", { ...shared, rows: 1, spellcheck: false })
        : element("input", { ...shared, type: "number", step });
    this.#inputs.set(name, input);
    const title = element("label", { className: "field-label", htmlFor: id }, label);
    const hint = element("span", { id: `${id}-help`, className: "hint" }, help);
    return element("div", { className: "field" }, title, input, hint);
  }

  #describe() {
    const words = this.#fields.map(({ name, label, off }) => {
      const value = this.#inputs.get(name).value.trim();
      return value === "" || Number(value) === off ? "" : `${label.toLowerCase()} ${value.replaceAll("\n", ", ")}`;
    });
    this.#digest.textContent = words.filter(Boolean).join(" · ");
  }
}
