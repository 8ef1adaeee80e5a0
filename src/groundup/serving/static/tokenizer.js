// The tokenizer view: the pre-tokens and tokens of a text as it is typed, and one pre-token's merges.

import { offerModels } from "./models.js";
import { element, formatCount, readProblem, request } from "./shell.js";
import { buildPairs, hexBytes, moveByArrows, spokenText, visibleBytes, visibleText } from "./tokens.js";

const EXAMPLE = "Once upon a time, a little tokenizer met a 🐢 and couldn't stop counting to 1024.";
const PAUSE_MILLISECONDS = 150;
const NUM_HUES = 4;

const find = (id) => document.getElementById(id);
const [text, chips, results] = ["tokenizer-text", "chips", "tokenizer-results"].map(find);
const [problem, steps] = ["tokenizer-problem", "steps"].map(find);

let model;
let preTokens = [];
let timer = 0;
let latest = null;

async function tokenize() {
  latest?.abort();
  latest = new AbortController();
  try {
    const response = await request("/api/tokenize", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ model, text: text.value }),
      signal: latest.signal,
    });
    show(await response.json());
    problem.textContent = "";
  } catch (error) {
    if (error.name !== "AbortError") problem.textContent = readProblem(error);
  }
}

function show(answer) {
  preTokens = answer.pre_tokens;
  let count = 0;
  const groups = preTokens.map((preToken, group) => {
    const made = preToken.tokens.map((token, index) => buildChip(token, group, index, count++));
    const label = `pre-token ${spokenText(preToken.text)}`;
    return element("span", { className: "pre-token", role: "group", ariaLabel: label }, ...made);
  });
  chips.replaceChildren(...groups);
  showSteps(chips.querySelector("button"));
  results.replaceChildren(
    ...buildPairs([
      ["Characters", formatCount(answer.num_characters)],
      ["Bytes", formatCount(answer.num_bytes)],
      ["Pre-tokens", formatCount(preTokens.length)],
      ["Tokens", formatCount(answer.num_tokens)],
      ["Bytes per token", (answer.num_bytes / Math.max(1, answer.num_tokens)).toFixed(2)],
    ]),
  );
}

function buildChip(token, group, index, number) {
  const bytes = hexBytes(token.bytes);
  return element(
    "button",
    {
      type: "button",
      className: "chip",
      tabIndex: number === 0 ? 0 : -1,
      ariaLabel: `${spokenText(token.text)}, id ${token.id}, bytes ${bytes}`,
      dataset: { group, index, hue: number % NUM_HUES },
    },
    element("span", { className: "mono" }, visibleBytes(token.bytes)),
    element("span", { className: "chip-id mono" }, String(token.id)),
    element("span", { className: "chip-bytes mono" }, bytes),
  );
}

/** One pre-token: its tokens with ids and bytes, and each merge from bytes to tokens. */
function showSteps(chip) {
  chips.querySelector(".pre-token[data-chosen]")?.removeAttribute("data-chosen");
  steps.replaceChildren();
  if (!chip) return;
  chip.parentElement.dataset.chosen = "";
  const preToken = preTokens[Number(chip.dataset.group)];
  const kind = preToken.is_special ? "Special token" : "Pre-token";
  steps.append(
    element("p", { className: "inspector-token mono" }, visibleText(preToken.text)),
    element("p", { className: "hint" }, `${kind}, characters ${preToken.start + 1} to ${preToken.end} of the text`),
    buildTokenTable(preToken.tokens, Number(chip.dataset.index)),
    element("h3", {}, "From bytes to tokens"),
    buildSteps(preToken),
  );
}

function buildTokenTable(tokens, chosen) {
  const rows = tokens.map(({ bytes, id }, index) => {
    const cells = [visibleBytes(bytes), String(id), hexBytes(bytes)];
    const row = element("tr", {}, ...cells.map((cell) => element("td", { className: "mono" }, cell)));
    if (index === chosen) row.ariaCurrent = "true";
    return row;
  });
  const heads = ["Token", "Id", "Bytes"].map((name) => element("th", { scope: "col" }, name));
  return element("table", { className: "token-table" }, element("tr", {}, ...heads), ...rows);
}

function buildSteps(preToken) {
  const reason = whyNoSteps(preToken);
  if (reason !== null) return element("p", { className: "hint" }, reason);
  let symbols = preToken.tokens.flatMap((token) => token.bytes).map((byte) => [byte]);
  const made = [buildStep("bytes", symbols, -1)];
  for (const merge of preToken.merges) {
    const merged = merge.symbols.findIndex((symbol, index) => symbol.length !== symbols[index].length);
    symbols = merge.symbols;
    const pair = `${visibleBytes(merge.left)} + ${visibleBytes(merge.right)}`;
    made.push(buildStep(`merge ${merge.rank + 1}: ${pair}`, symbols, merged));
  }
  return element("ol", { className: "merge-steps" }, ...made);
}

function whyNoSteps(preToken) {
  if (preToken.is_special) return "Special tokens are not split: there are no merges.";
  if (preToken.is_too_long) return "This pre-token is too long to show its merges.";
  if (preToken.is_whole_word) return "The whole pre-token is in the vocabulary: no merges are needed.";
  return preToken.merges.length === 0 ? "No merge applies: each byte is a token." : null;
}

function buildStep(name, symbols, merged) {
  const made = symbols.map((symbol, index) => {
    const tag = index === merged ? "mark" : "span";
    return element(tag, { className: "symbol" }, visibleBytes(symbol));
  });
  return element("li", { className: "merge-step" }, element("p", { className: "hint" }, name), element("p", { className: "mono" }, ...made));
}

function restore() {
  if (!location.hash.startsWith("#tokenizer")) return;
  const query = location.hash.split("?")[1];
  if (query !== undefined) text.value = new URLSearchParams(query).get("text") ?? "";
  tokenize();
}

text.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(() => {
    const parameters = new URLSearchParams({ text: text.value.slice(0, 4000) });
    history.replaceState(null, "", `#tokenizer?${parameters}`);
    tokenize();
  }, PAUSE_MILLISECONDS);
});
find("chip-detail").addEventListener("change", ({ target }) => (chips.dataset.detail = target.value));
moveByArrows(chips, showSteps);
addEventListener("hashchange", restore);

text.value = EXAMPLE;
offerModels(find("tokenizer-model"), ({ id }) => {
  model = id;
  restore();
}).catch((error) => (problem.textContent = readProblem(error)));
