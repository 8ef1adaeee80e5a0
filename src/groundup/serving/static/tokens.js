// Displaying tokens: visible text, colors, a streamed answer, and the panel with one token's
// alternatives.

import { countOf, element, formatCount, formatProbability } from "./shell.js";

const NAMED = { " ": "␣", "\n": "↵", "\t": "⇥" };
const FINISH_REASONS = { stop: "end of text", length: "length limit", stopped: "stopped by you" };
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
// The server's spelling of a token that is not valid UTF-8: bytes:\xf0\x9f
const SPELLED_BYTES = /^bytes:((?:\\x[0-9a-f]{2})+)$/;
// The lower bound of each level of the color scale.
const LEVELS = [0, 0.05, 0.2, 0.5, 0.9];

/** " it\n" -> "␣it↵": makes every character visible. */
export function visibleText(text) {
  if (text === "") return "∅";
  return [...readable(text)].map((character) => NAMED[character] ?? character).join("");
}

/** " it" -> "space it": for accessible names. */
export function spokenText(text) {
  const spoken = readable(text).replaceAll("\n", " line break ").replace(/^ +/, "space ");
  return spoken.trim() || "empty";
}

/** [32, 105, 116] -> "␣it"; bytes of a partial character are shown in hexadecimal. */
export function visibleBytes(bytes) {
  try {
    return visibleText(decoder.decode(new Uint8Array(bytes)));
  } catch {
    return `⟨${hexBytes(bytes).replaceAll(" ", "·")}⟩`;
  }
}

/** [240, 159] -> "f0 9f" */
export function hexBytes(bytes) {
  return bytes.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

// Replaces control characters by Unicode's control pictures, which are in the same order.
function readable(text) {
  const bytes = SPELLED_BYTES.exec(text)?.[1];
  if (bytes !== undefined) return `⟨${bytes.slice(2).replaceAll("\\x", "·")}⟩`;
  return text.replace(/[\x00-\x08\x0b-\x1f]/g, (control) =>
    String.fromCodePoint(0x2400 + control.codePointAt(0)),
  );
}

/** Makes a list of buttons one Tab stop; arrow keys, Home and End move the focus inside it.
 *  Calls `onChoose(button)` with the focused button. */
export function moveByArrows(list, onChoose) {
  list.addEventListener("click", (event) => event.target.closest("button")?.focus());
  list.addEventListener("focusin", ({ target }) => {
    for (const other of list.querySelectorAll("button[tabindex='0']")) other.tabIndex = -1;
    list.querySelector("[aria-current]")?.removeAttribute("aria-current");
    target.tabIndex = 0;
    target.ariaCurrent = "true";
    onChoose(target);
  });
  list.addEventListener("keydown", (event) => {
    const buttons = [...list.querySelectorAll("button")];
    const index = buttons.indexOf(document.activeElement);
    const places = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: buttons.length - 1 };
    if (!(event.key in places) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    buttons[places[event.key]]?.focus();
  });
}

/** The level of the color scale: 0 for the lowest probabilities. */
export function levelOf(probability) {
  return LEVELS.findLastIndex((least) => probability >= least);
}

/** Shows each level of the color scale with its label. */
export function fillLegend(legend) {
  const labels = ["under 5%", "5–20%", "20–50%", "50–90%", "90% or more"];
  const steps = labels.map((label, level) => element("span", { className: "token", dataset: { level } }, label));
  legend.replaceChildren(...steps.reverse());
}

/** Shows a token, or instructions if none is selected. */
export function fillInspector(panel, token, index, count) {
  if (!token) {
    panel.replaceChildren(
      element("h3", {}, "Inspect a token"),
      element("p", { className: "hint" }, "Select a token by click or arrow keys to see its alternatives."),
    );
    return;
  }
  panel.replaceChildren(
    element("h3", {}, `Token ${index + 1} of ${count}`),
    element("p", { className: "inspector-token mono" }, visibleText(token.text)),
    element("p", { className: "hint" }, element("strong", {}, formatProbability(token.probability)), ` id ${token.id}`),
    element("ol", { className: "alternatives" }, ...token.alternatives.map((one) => buildAlternative(one, token))),
    element("p", { className: "hint" }, "Probabilities of the model before temperature and the other sampling settings."),
  );
}

function buildAlternative({ id, text, probability }, chosen) {
  const isChosen = id === chosen.id;
  const bar = buildBar(visibleText(text), formatProbability(probability), probability, isChosen && element("span", { className: "badge" }, "chosen"));
  bar.dataset.chosen = isChosen;
  return bar;
}

/** A list item: a name, an optional element, the value as text, and a bar from 0 to 1. */
export function buildBar(name, words, fraction, between = null) {
  const bar = element("span", { className: "bar", ariaHidden: "true" });
  bar.style.setProperty("--fraction", String(Math.min(1, Math.max(0, fraction))));
  const made = [element("span", { className: "mono cut" }, name), between, element("span", { className: "alternative-probability" }, words), bar];
  return element("li", { className: "alternative" }, ...made);
}

/** A streamed answer, shown as text in one element and as tokens in another. */
export class Answer {
  tokens = [];
  text = "";
  #parts;
  #waiting = [];
  #frame = 0;

  constructor({ text, tokens, inspector }) {
    this.#parts = { text, tokens };
    moveByArrows(tokens, ({ dataset: { index } }) =>
      fillInspector(inspector, this.tokens[index], Number(index), this.tokens.length),
    );
    fillInspector(inspector, null);
  }

  /** Clears the answer and shows `before` ahead of it. */
  begin(before = "") {
    this.tokens = [];
    this.text = "";
    const echo = () => element("span", { className: "prompt-echo" }, before);
    this.#parts.text.replaceChildren(echo());
    this.#parts.tokens.replaceChildren(echo());
  }

  /** Shows the events of a stream; resolves to { reason, numPromptTokens, seconds }. */
  async show(events, onText = () => {}) {
    const outcome = { reason: null, numPromptTokens: null, seconds: 0 };
    let firstTime = null;
    try {
      for await (const event of events) {
        firstTime ??= performance.now();
        outcome.reason = event.finishReason ?? outcome.reason;
        outcome.numPromptTokens = event.usage?.prompt_tokens ?? outcome.numPromptTokens;
        // Update once per frame: tokens may arrive faster than the browser paints.
        this.#waiting.push(event);
        this.#frame ||= requestAnimationFrame(() => this.#flush());
        onText();
      }
    } catch (error) {
      if (error.name !== "AbortError") throw error;
      outcome.reason = "stopped";
    } finally {
      this.#flush();
      outcome.seconds = firstTime === null ? 0 : (performance.now() - firstTime) / 1000;
    }
    return outcome;
  }

  /** The statistics of the answer as a row of terms and values. */
  buildResults({ reason, numPromptTokens, seconds }, seed) {
    const count = this.tokens.length;
    const surprise = this.tokens.reduce((sum, token) => sum - Math.log(token.probability), 0);
    return buildPairs([
      numPromptTokens !== null && ["Prompt", countOf(numPromptTokens, "token")],
      ["Generated", countOf(count, "token")],
      count > 1 && seconds > 0 && ["Speed", `${formatCount((count - 1) / seconds)} tokens/s`],
      count > 0 && ["Perplexity", Math.exp(surprise / count).toFixed(2)],
      ["Seed", String(seed)],
      reason !== null && ["Stopped at", FINISH_REASONS[reason] ?? reason],
    ]);
  }

  #flush() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    for (const { text, tokens } of this.#waiting) {
      this.text += text;
      this.#parts.text.append(text);
      for (const token of tokens) {
        this.#parts.tokens.append(buildToken(token, this.tokens.length));
        if (token.text.endsWith("\n")) this.#parts.tokens.append("\n");
        this.tokens.push(token);
      }
    }
    this.#waiting = [];
  }
}

/** [["Tokens", "64"], false] -> the children of <dl class="results">. */
export function buildPairs(pairs) {
  return pairs
    .filter(Boolean)
    .map(([term, value]) => element("div", {}, element("dt", {}, term), element("dd", {}, value)));
}

function buildToken(token, index) {
  const probability = formatProbability(token.probability);
  return element(
    "button",
    {
      type: "button",
      className: "token",
      tabIndex: index === 0 ? 0 : -1,
      title: probability,
      ariaLabel: `${spokenText(token.text)}, ${probability}`,
      dataset: { index, level: levelOf(token.probability) },
    },
    readable(token.text).replaceAll("\n", "↵"),
  );
}
