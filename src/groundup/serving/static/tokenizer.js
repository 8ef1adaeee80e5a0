// The tokenizer view: a text as pre-tokens and tokens while it is typed, and the merges of one.

import { buildPreTokenDetail } from "./merge_steps.js";
import { RovingList } from "./roving.js";
import { element, formatCount, readProblem, request } from "./shell.js";
import { hexBytes, spokenText, visibleBytes } from "./token_text.js";

const EXAMPLE =
  "Once upon a time, a little tokenizer met a 🐢 and couldn't stop counting to 1024.";
const PAUSE_MILLISECONDS = 150;
const NUM_HUES = 4;

const find = (id) => document.getElementById(id);
const [text, chips, results] = ["tokenizer-text", "chips", "tokenizer-results"].map(find);
const [problem, steps] = ["tokenizer-problem", "steps"].map(find);
const roving = new RovingList(chips, { onShow: showSteps });

let preTokens = [];
let timer = 0;
let latest = null;

async function tokenize() {
  latest?.abort();
  const mine = new AbortController();
  latest = mine;
  try {
    const response = await request("/api/tokenize", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ text: text.value }),
      signal: mine.signal,
    });
    const answer = await response.json();
    problem.textContent = "";
    show(answer);
  } catch (error) {
    if (error.name === "AbortError") return;
    problem.textContent = readProblem(error);
  }
}

function show(answer) {
  preTokens = answer.pre_tokens;
  roving.clear();
  let hue = 0;
  const groups = preTokens.map((preToken, group) => {
    const tokens = preToken.tokens.map((token, index) =>
      buildChip(token, group, index, hue++ % NUM_HUES),
    );
    const label = `pre-token ${spokenText(preToken.text)}`;
    return element("span", { className: "pre-token", role: "group", ariaLabel: label }, ...tokens);
  });
  chips.replaceChildren(...groups);
  roving.refresh();
  showResults(answer);
  roving.choose(chips.querySelector('[role="option"]'));
}

function showResults(answer) {
  const bytesPerToken = answer.num_ids === 0 ? 0 : answer.num_bytes / answer.num_ids;
  const rows = [
    ["Characters", formatCount(answer.num_characters)],
    ["Bytes", formatCount(answer.num_bytes)],
    ["Pre-tokens", formatCount(answer.pre_tokens.length)],
    ["Tokens", formatCount(answer.num_ids)],
    ["Bytes per token", bytesPerToken.toFixed(2)],
  ];
  results.replaceChildren(
    ...rows.map(([term, value]) =>
      element("div", {}, element("dt", {}, term), element("dd", {}, value)),
    ),
  );
}

function buildChip(token, group, index, hue) {
  const bytes = hexBytes(token.bytes);
  return element(
    "span",
    {
      className: "chip",
      role: "option",
      tabIndex: -1,
      ariaSelected: "false",
      title: `id ${token.id}, bytes ${bytes}`,
      ariaLabel: `${spokenText(token.text)}, id ${token.id}, bytes ${bytes}`,
      dataset: { group, index, hue },
    },
    element("span", { className: "chip-text" }, visibleBytes(token.bytes)),
    element("span", { className: "chip-id" }, String(token.id)),
    element("span", { className: "chip-bytes" }, bytes),
  );
}

function showSteps(option) {
  chips.querySelector(".pre-token[data-chosen]")?.removeAttribute("data-chosen");
  if (!option) {
    const hint = "Choose a token to see how its pre-token was merged.";
    steps.replaceChildren(element("p", { className: "page-note" }, hint));
    return;
  }
  option.parentElement.dataset.chosen = "";
  const preToken = preTokens[Number(option.dataset.group)];
  steps.replaceChildren(buildPreTokenDetail(preToken, Number(option.dataset.index)));
}

function isShown() {
  return location.hash.startsWith("#tokenizer");
}

function save() {
  if (!isShown()) return;
  const parameters = new URLSearchParams({ text: text.value.slice(0, 4000) });
  history.replaceState(null, "", `#tokenizer?${parameters}`);
}

function restore() {
  if (!isShown()) return;
  const query = location.hash.split("?")[1];
  if (query !== undefined) text.value = new URLSearchParams(query).get("text") ?? "";
  tokenize();
}

text.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(() => {
    save();
    tokenize();
  }, PAUSE_MILLISECONDS);
});
for (const choice of document.querySelectorAll('[name="chip-detail"]')) {
  choice.addEventListener("change", () => {
    chips.dataset.detail = choice.value;
  });
}
addEventListener("hashchange", restore);

text.value = EXAMPLE;
restore();
