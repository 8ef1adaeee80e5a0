// The playground: a prompt, one or two columns of output, and the state in the URL.

import { streamChat, streamCompletion } from "./completions.js";
import { ModelMenu, describeModel, listModels } from "./models.js";
import { Settings } from "./settings.js";
import { countOf, element, readProblem, recall, remember } from "./shell.js";
import { Answer, fillLegend } from "./tokens.js";

const MAX_PROMPT_IN_URL = 4000;

const find = (id) => document.getElementById(id);
const [form, prompt, compare, problem] = ["prompt-form", "prompt", "compare", "problem"].map(find);
const [generateButton, stopButton, announcer] = ["generate", "stop", "announcer"].map(find);
const asMessage = find("as-message");

let running = null;
let saveTimer = 0;

/** One column: model, settings, streamed output as text or tokens, and statistics. */
class Column {
  constructor(name, initial) {
    this.name = name;
    this.initial = initial;
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

  /** With several models, each column has its own menu. */
  offer(models, usual) {
    const row = this.root.querySelector(".column-model");
    this.usual = usual;
    const initial = models.length > 1 ? {} : this.initial;
    const choose = (model) => {
      this.model = model;
      row.lastElementChild.textContent = describeModel(model);
      this.settings.setInitial({ ...model.generation, ...initial });
      for (const button of this.empty.querySelectorAll("button")) button.remove();
      this.empty.append(...(model.prompts ?? []).map(buildPrompt));
    };
    this.menu = new ModelMenu(models, choose, { ariaLabel: `Model ${this.name.toUpperCase()}` });
    this.menu.root.addEventListener("change", () => {
      if (this === columns[0]) remember("model", this.model.id);
      saveSoon();
    });
    row.prepend(this.menu.root);
    row.hidden = models.length === 1;
    this.menu.choose(usual);
  }

  readFrom(parameters) {
    this.menu?.choose(parameters.get(`${this.name}-model`) ?? this.usual);
    this.settings.readFrom(parameters);
  }

  writeTo(parameters) {
    if (this.model && this.model.id !== this.usual) parameters.set(`${this.name}-model`, this.model.id);
    this.settings.writeTo(parameters);
  }

  /** Streams the output; `seed` is the default seed. */
  async run(seed, signal) {
    const isMessage = asMessage.checked && this.model?.has_chat_template;
    this.answer.begin(isMessage ? "" : prompt.value);
    this.results.replaceChildren();
    this.empty.hidden = true;
    this.root.dataset.state = "streaming";
    const body = { model: this.model?.id, ...this.settings.toRequest(seed) };
    const events = isMessage
      ? streamChat({ ...body, messages: [{ role: "user", content: prompt.value }] }, signal)
      : streamCompletion({ ...body, prompt: prompt.value }, signal);
    try {
      const outcome = await this.answer.show(events);
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
  // The same seed for both columns, so that only their settings differ.
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

/** A button for one of the run's own sample prompts. */
function buildPrompt(example) {
  const button = element("button", { className: "button", type: "button" }, example);
  button.addEventListener("click", () => {
    prompt.value = example;
    prompt.focus();
    saveSoon();
  });
  return button;
}

// The URL contains everything that differs from a fresh page, so that links reproduce the settings.
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
  if (asMessage.checked) parameters.set("message", "1");
  for (const column of columns) column.writeTo(parameters);
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
    asMessage.checked = parameters.get("message") === "1";
    form.elements.view.value = parameters.get("view") === "tokens" ? "tokens" : "text";
    for (const column of columns) column.readFrom(parameters);
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
listModels().then(
  (models) => {
    const first = models.find(({ id }) => id === recall("model")) ?? models[0];
    const other = models.find(({ id }) => id !== first.id) ?? first;
    columns[0].offer(models, first.id);
    columns[1].offer(models, other.id);
    find("as-message-switch").hidden = !models.some((model) => model.has_chat_template);
    const isOne = models.length === 1;
    find("model-note").textContent = isOne ? describeModel(first, true) : countOf(models.length, "model");
    restore();
  },
  (error) => (problem.textContent = readProblem(error)),
);
