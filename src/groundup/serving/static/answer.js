// One streamed answer, as text and as tokens that can be looked at, and its numbers.

import { fillInspector, levelOf } from "./inspector.js";
import { RovingList } from "./roving.js";
import { countOf, element, formatCount, formatProbability } from "./shell.js";
import { flowingText, spokenText } from "./token_text.js";

const ENDINGS = { stop: "the text ended", length: "length reached", stopped: "stopped by you" };

/** Fills two elements of a page, one with the text and one with the tokens; the token that is
 *  pointed at or chosen is shown in the inspector. */
export class Answer {
  tokens = [];
  #parts;
  #waitingTokens = [];
  #waitingText = "";
  #frame = 0;
  #roving;

  constructor({ text, tokens, inspector }) {
    this.#parts = { text, tokens, inspector };
    this.#roving = new RovingList(tokens, {
      onShow: (option) => this.#inspect(option),
      onPoint: (option) => !this.#isSheet() && this.#inspect(option),
    });
    this.#inspect(null);
  }

  /** Begins anew, with a text that stands before the answer. */
  begin(before) {
    this.tokens = [];
    this.#waitingTokens = [];
    this.#waitingText = "";
    this.#roving.clear();
    this.#parts.text.replaceChildren(buildEcho(before));
    this.#parts.tokens.append(buildEcho(before));
  }

  /** Shows the events of a stream and tells `onText` each piece; gives how it ended, the prompt's
   *  tokens and the seconds since the first one. */
  async show(events, onText) {
    const outcome = { ending: null, numPromptTokens: null, seconds: 0 };
    let firstTime = null;
    try {
      for await (const event of events) {
        firstTime ??= performance.now();
        outcome.ending = event.finishReason ?? outcome.ending;
        outcome.numPromptTokens = event.usage?.prompt_tokens ?? outcome.numPromptTokens;
        this.#add(event);
        onText(event.text);
      }
    } catch (error) {
      if (error.name !== "AbortError") throw error;
      outcome.ending = "stopped";
    } finally {
      this.#flush();
      outcome.seconds = firstTime === null ? 0 : (performance.now() - firstTime) / 1000;
    }
    return outcome;
  }

  /** The numbers of the answer as a row of terms and values; `more` come before the last two. */
  buildResults({ ending, numPromptTokens, seconds }, seed, ...more) {
    const count = this.tokens.length;
    const surprise = this.tokens.reduce((sum, token) => sum - Math.log(token.probability), 0);
    const results = [
      numPromptTokens !== null && ["Prompt", countOf(numPromptTokens, "token")],
      ["Generated", countOf(count, "token")],
      count > 1 && seconds > 0 && ["Speed", `${formatCount((count - 1) / seconds)} tokens/s`],
      ...more,
      count > 0 && ["Perplexity", Math.exp(surprise / count).toFixed(2)],
      ["Seed", String(seed)],
      ending !== null && ["Ended", ENDINGS[ending] ?? ending],
    ];
    return results
      .filter(Boolean)
      .map(([term, value]) => element("div", {}, element("dt", {}, term), element("dd", {}, value)));
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
      this.#parts.tokens.append(buildToken(token, this.tokens.length));
      this.tokens.push(token);
    }
    this.#waitingTokens = [];
    this.#roving.refresh();
  }

  #inspect(option) {
    const index = option ? Number(option.dataset.index) : -1;
    fillInspector(this.#parts.inspector, this.tokens[index] ?? null, index, this.tokens.length);
    if (this.#isSheet()) option?.scrollIntoView({ block: "nearest" });
  }

  #isSheet() {
    return getComputedStyle(this.#parts.inspector).getPropertyValue("--is-sheet") === "1";
  }
}

function buildEcho(text) {
  return element("span", { className: "prompt-echo" }, text);
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
