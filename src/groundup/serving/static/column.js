// One column of the playground: its settings, its streamed answer as text or tokens, its numbers.

import { Answer } from "./answer.js";
import { streamCompletion } from "./completions.js";
import { fillLegend } from "./inspector.js";
import { Settings } from "./settings.js";

export class Column {
  #parts;
  #answer;

  constructor(name, { title, initial, onChange, buildEmptyState }) {
    const template = document.getElementById("column-template");
    const root = template.content.firstElementChild.cloneNode(true);
    const find = (selector) => root.querySelector(selector);
    this.root = root;
    this.name = name;
    this.#parts = {
      text: find(".output-text"),
      tokens: find(".output-tokens"),
      empty: find(".output-empty"),
      results: find(".results"),
      inspector: find(".inspector"),
      legend: find(".legend"),
    };
    root.setAttribute("aria-label", title);
    find(".column-title").textContent = title;
    find(".settings").open = matchMedia("(min-width: 44rem)").matches;
    this.settings = new Settings(`${name}-`, {
      grid: find(".settings-grid"),
      digest: find(".settings-digest"),
      initial,
      onChange,
    });
    fillLegend(this.#parts.legend);
    this.#parts.empty.append(buildEmptyState());
    this.#parts.tokens.ariaLabel = `Tokens of ${title}`;
    this.#parts.inspector.ariaLabel = `Chosen token of ${title}`;
    this.#answer = new Answer(this.#parts);
    this.showAs("text");
  }

  /** "text" or "tokens". */
  showAs(view) {
    const hasAnswer = this.#parts.empty.hidden;
    this.view = view;
    this.root.dataset.view = view;
    this.#parts.text.hidden = !hasAnswer || view !== "text";
    this.#parts.tokens.hidden = !hasAnswer || view !== "tokens";
    this.#parts.inspector.hidden = view !== "tokens" || !hasAnswer;
    this.#parts.legend.hidden = view !== "tokens" || !hasAnswer;
  }

  /** Streams the answer and tells `onText` each piece; `seed` is used where none is set. */
  async run(prompt, seed, signal, onText) {
    this.#begin(prompt);
    const body = { prompt, ...this.settings.toRequest(seed) };
    let outcome = { ending: null, numPromptTokens: null, seconds: 0 };
    try {
      outcome = await this.#answer.show(streamCompletion(body, signal), onText);
    } finally {
      this.root.dataset.state = "done";
      const past = this.#isPastContext(outcome.numPromptTokens);
      this.#parts.results.replaceChildren(
        ...this.#answer.buildResults(
          outcome,
          body.seed,
          past && ["Context", "exceeded: the beginning was forgotten"],
        ),
      );
    }
    return { ending: outcome.ending, numTokens: this.#answer.tokens.length };
  }

  #begin(prompt) {
    this.#answer.begin(prompt);
    this.#parts.results.replaceChildren();
    this.#parts.empty.hidden = true;
    this.root.dataset.state = "streaming";
    this.showAs(this.view);
  }

  #isPastContext(numPromptTokens) {
    const numTokens = this.#answer.tokens.length + (numPromptTokens ?? 0);
    return numTokens > (this.contextLength ?? Infinity);
  }
}
