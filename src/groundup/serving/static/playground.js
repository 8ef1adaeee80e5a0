// The playground: one prompt, one column or two, what runs now, and the state kept in the URL.

import { streamCompletion } from "./completions.js";
import { Settings } from "./settings.js";
import { element, nameModel, readProblem } from "./shell.js";
import { Answer, fillLegend } from "./tokens.js";

const MAX_PROMPT_IN_URL = 4000;

const find = (id) => document.getElementById(id);
const [form, prompt, compare, problem] = ["prompt-form", "prompt", "compare", "problem"].map(find);
const [generateButton, stopButton, announcer] = ["generate", "stop", "announcer"].map(find);

let running = null;
let saveTimer = 0;

/** One column: its settings, its streamed answer as text or tokens, its numbers. */
class Column {
  constructor(name, initial) {
    const template = find("column-template");
    this.root = template.content.firstElementChild.cloneNode(true);
    const part = (selector) => this.root.querySelector(selector);
    part("details").open = innerWidth > 700;
    this.root.ariaLabel = part(".column-title").textContent = name.toUpperCase();
    this.empty = part(".output-empty");
    this.results = part(".results");
    this.settings = new Settings(`${name}-`, { root: this.root, initial, onChange: saveSoon });
    const [text, tokens, inspector] = [".output-text", ".output-tokens", ".inspector"].map(part);
    this.answer = new Answer({ text, tokens, inspector });
    fillLegend(part(".legend"));
  }

  /** Streams the answer; `seed` is used if none is set. */
  async run(seed, signal) {
    this.answer.begin(prompt.value);
    this.results.replaceChildren();
    this.empty.hidden = true;
    this.root.dataset.state = "streaming";
    const body = { prompt: prompt.value, ...this.settings.toRequest(seed) };
    try {
      const outcome = await this.answer.show(streamCompletion(body, signal));
      this.results.replaceChildren(...this.answer.buildResults(outcome, body.seed));
    } finally {
      this.root.dataset.state = "done";
    }
  }
}

const columns = [new Column("a", {}), new Column("b", { temperature: "0.2" })];
find("columns").append(...columns.map(({ root }) => root));

async function generate() {
  running?.abort();
  const run = new AbortController();
  running = run;
  problem.textContent = "";
  showRunning(true);
  const chosen = compare.checked ? columns : columns.slice(0, 1);
  // One for both columns: what then differs comes from the settings.
  const seed = Math.floor(Math.random() * 2 ** 31);
  const results = await Promise.allSettled(chosen.map((column) => column.run(seed, run.signal)));
  if (running !== run) return;
  running = null;
  showRunning(false);
  const problems = results.filter(({ status }) => status === "rejected");
  problem.textContent = [...new Set(problems.map(({ reason }) => readProblem(reason)))].join(" ");
  announcer.textContent = chosen.map(({ answer }) => answer.text).join(" ");
}

function showRunning(isRunning) {
  const hadFocus = [generateButton, stopButton].includes(document.activeElement);
  generateButton.hidden = isRunning;
  stopButton.hidden = !isRunning;
  form.setAttribute("aria-busy", String(isRunning));
  if (hadFocus) (isRunning ? stopButton : generateButton).focus();
}

function showChoices() {
  find("columns").dataset.compare = compare.checked;
  for (const { root } of columns) root.dataset.view = form.elements.view.value;
}

/** Offers the prompts that the run itself was sampled with. */
function offerPrompts(prompts) {
  for (const { empty } of columns) {
    for (const example of prompts) {
      const button = element("button", { className: "button", type: "button" }, example);
      button.addEventListener("click", () => {
        prompt.value = example;
        prompt.focus();
        saveSoon();
      });
      empty.append(button);
    }
  }
}

// The URL holds whatever differs from a fresh page, so that a link shows the same settings.
function saveSoon() {
  clearTimeout(saveTimer);
  saveTimer = setTimeout(save, 300);
}

function save() {
  if (isTokenizer()) return;
  const parameters = new URLSearchParams();
  if (prompt.value !== "") parameters.set("prompt", prompt.value.slice(0, MAX_PROMPT_IN_URL));
  if (compare.checked) parameters.set("compare", "1");
  if (form.elements.view.value !== "text") parameters.set("view", form.elements.view.value);
  for (const column of columns) column.settings.writeTo(parameters);
  history.replaceState(null, "", parameters.size === 0 ? "#playground" : `#playground?${parameters}`);
}

function isTokenizer() {
  return location.hash.startsWith("#tokenizer");
}

function restore() {
  find("playground-view").hidden = isTokenizer();
  find("tokenizer-view").hidden = !isTokenizer();
  document.title = `${isTokenizer() ? "Tokenizer" : "Playground"} · groundup`;
  const query = location.hash.split("?")[1];
  if (!isTokenizer() && query !== undefined) {
    const parameters = new URLSearchParams(query);
    prompt.value = parameters.get("prompt") ?? "";
    compare.checked = parameters.get("compare") === "1";
    form.elements.view.value = parameters.get("view") === "tokens" ? "tokens" : "text";
    for (const column of columns) column.settings.readFrom(parameters);
  }
  showChoices();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  generate();
});
form.addEventListener("input", () => {
  showChoices();
  saveSoon();
});
stopButton.addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (isTokenizer() || document.querySelector("dialog[open]")) return;
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) generate();
  if (event.key === "Escape") running?.abort();
});
addEventListener("hashchange", restore);

restore();
nameModel(find("model-note")).then(
  (model) => offerPrompts(model.prompts),
  (error) => (problem.textContent = readProblem(error)),
);
