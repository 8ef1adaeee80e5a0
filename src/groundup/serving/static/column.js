// One column of the playground: its settings, its streamed answer as text or tokens, its numbers.

import { streamCompletion } from "./completions.js";
import { fillInspector, fillLegend, levelOf } from "./inspector.js";
import { RovingList } from "./roving.js";
import { Settings } from "./settings.js";
import { countOf, element, formatCount, formatProbability } from "./shell.js";
import { flowingText, spokenText } from "./token_text.js";

const ENDINGS = { stop: "the text ended", length: "length reached", stopped: "stopped by you" };

export class Column {
  #parts;
  #tokens = [];
  #waitingTokens = [];
  #waitingText = "";
  #frame = 0;
  #roving;
  #seed = null;

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
    this.#roving = new RovingList(this.#parts.tokens, {
      onShow: (option) => this.#inspect(option),
      onPoint: (option) => !this.#isSheet() && this.#inspect(option),
    });
    this.#inspect(null);
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
    this.#seed = body.seed;
    let ending = null;
    let numPromptTokens = null;
    let firstTime = null;
    try {
      for await (const event of streamCompletion(body, signal)) {
        firstTime ??= performance.now();
        ending = event.finishReason ?? ending;
        numPromptTokens = event.usage?.prompt_tokens ?? numPromptTokens;
        this.#add(event);
        onText(event.text);
      }
    } catch (error) {
      if (error.name !== "AbortError") throw error;
      ending = "stopped";
    } finally {
      this.#flush();
      this.root.dataset.state = "done";
      const seconds = firstTime === null ? 0 : (performance.now() - firstTime) / 1000;
      this.#showResults({ ending, numPromptTokens, seconds });
    }
    return { ending, numTokens: this.#tokens.length };
  }

  #begin(prompt) {
    this.#tokens = [];
    this.#waitingTokens = [];
    this.#waitingText = "";
    this.#roving.clear();
    this.#parts.text.replaceChildren(buildEcho(prompt));
    this.#parts.tokens.append(buildEcho(prompt));
    this.#parts.results.replaceChildren();
    this.#parts.empty.hidden = true;
    this.root.dataset.state = "streaming";
    this.showAs(this.view);
  }

  // Tokens may come faster than the screen is painted: they are gathered and shown once a frame.
  #add(event) {
    this.#waitingText += event.text;
    this.#waitingTokens.push(...event.tokens);
    this.#frame ||= requestAnimationFrame(() => this.#flush());
  }

  #flush() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#parts.text.append(this.#waitingText);
    this.#waitingText = "";
    for (const token of this.#waitingTokens) {
      this.#parts.tokens.append(buildToken(token, this.#tokens.length));
      this.#tokens.push(token);
    }
    this.#waitingTokens = [];
    this.#roving.refresh();
  }

  #inspect(option) {
    const index = option ? Number(option.dataset.index) : -1;
    fillInspector(this.#parts.inspector, this.#tokens[index] ?? null, index, this.#tokens.length);
    if (this.#isSheet()) option?.scrollIntoView({ block: "nearest" });
  }

  #isSheet() {
    return getComputedStyle(this.#parts.inspector).getPropertyValue("--is-sheet") === "1";
  }

  #isPastContext(numPromptTokens) {
    return this.#tokens.length + (numPromptTokens ?? 0) > (this.contextLength ?? Infinity);
  }

  #showResults({ ending, numPromptTokens, seconds }) {
    const count = this.#tokens.length;
    const surprise = this.#tokens.reduce((sum, token) => sum - Math.log(token.probability), 0);
    const results = [
      numPromptTokens !== null && ["Prompt", countOf(numPromptTokens, "token")],
      ["Generated", countOf(count, "token")],
      count > 1 && seconds > 0 && ["Speed", `${formatCount((count - 1) / seconds)} tokens/s`],
      this.#isPastContext(numPromptTokens) && ["Context", "exceeded: the beginning was forgotten"],
      count > 0 && ["Perplexity", Math.exp(surprise / count).toFixed(2)],
      ["Seed", String(this.#seed)],
      ending !== null && ["Ended", ENDINGS[ending] ?? ending],
    ];
    this.#parts.results.replaceChildren(
      ...results.filter(Boolean).map(([term, value]) =>
        element("div", {}, element("dt", {}, term), element("dd", {}, value)),
      ),
    );
  }
}

function buildEcho(prompt) {
  return element("span", { className: "prompt-echo" }, prompt);
}

function buildToken(token, index) {
  const probability = formatProbability(token.probability);
  return element(
    "span",
    {
      className: "token",
      role: "option",
      tabIndex: -1,
      title: probability,
      ariaSelected: "false",
      ariaLabel: `${spokenText(token.text)}, ${probability}`,
      dataset: { index, level: levelOf(token.probability) },
    },
    flowingText(token.text),
  );
}
