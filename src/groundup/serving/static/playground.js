// The playground: one prompt, one column or two, what runs now, and the state kept in the URL.

import { Column } from "./column.js";
import { countOf, element, nameModel, readProblem } from "./shell.js";
import { SentenceAnnouncer } from "./announcer.js";

const MAX_PROMPT_IN_URL = 4000;

const find = (id) => document.getElementById(id);
const [form, prompt, compare, problem] = ["prompt-form", "prompt", "compare", "problem"].map(find);
const [generateButton, stopButton] = ["generate", "stop"].map(find);
const announcer = new SentenceAnnouncer(find("announcer"));

let running = null;
let saveTimer = 0;

const shared = { onChange: saveSoon, buildEmptyState };
const columns = [
  new Column("a", { title: "A", initial: {}, ...shared }),
  new Column("b", { title: "B", initial: { temperature: "0.2" }, ...shared }),
];
find("columns").append(...columns.map((column) => column.root));

function activeColumns() {
  return compare.checked ? columns : columns.slice(0, 1);
}

async function generate() {
  running?.abort();
  const run = new AbortController();
  running = run;
  problem.textContent = "";
  const hadFocus = document.activeElement === generateButton;
  showRunning(true);
  if (hadFocus) stopButton.focus();
  const chosen = activeColumns();
  announcer.begin(chosen.length > 1 ? "Writing two texts." : "Writing.");
  // One for both columns: what then differs comes from the settings.
  const seed = Math.floor(Math.random() * 2 ** 31);
  const results = await Promise.allSettled(
    chosen.map((column) =>
      column.run(prompt.value, seed, run.signal, (text) => announcer.add(column.name, text)),
    ),
  );
  if (running !== run) return;
  running = null;
  const returnFocus = document.activeElement === stopButton;
  showRunning(false);
  if (returnFocus) generateButton.focus();
  const problems = results.filter(({ status }) => status === "rejected");
  problem.textContent = [...new Set(problems.map(({ reason }) => readProblem(reason)))].join(" ");
  const numTokens = results.map(({ value }) => value?.numTokens ?? 0);
  const counts = numTokens.map((number) => countOf(number, "token"));
  announcer.end(problems.length === 0 ? `Finished: ${counts.join(" and ")}.` : "");
}

function showRunning(isRunning) {
  generateButton.hidden = isRunning;
  stopButton.hidden = !isRunning;
  form.setAttribute("aria-busy", String(isRunning));
}

function showColumns() {
  columns[1].root.hidden = !compare.checked;
  find("columns").dataset.compare = compare.checked;
}

function showView() {
  const view = form.elements.view.value;
  for (const column of columns) column.showAs(view);
}

function buildEmptyState() {
  return element(
    "div",
    { className: "empty-state" },
    element("p", {}, "The model's text appears here. Write a prompt, and generate."),
    element("div", { className: "examples" }),
  );
}

/** Offers the prompts that the run itself was sampled with. */
function offerPrompts(prompts) {
  for (const place of document.querySelectorAll(".examples")) {
    const buttons = prompts.map((example) => {
      const button = element("button", { className: "button small", type: "button" }, example);
      button.addEventListener("click", () => {
        prompt.value = example;
        prompt.focus();
        saveSoon();
      });
      return button;
    });
    place.replaceChildren(...buttons);
  }
}

// The URL holds whatever differs from a fresh page, so that a link shows the same settings.

function saveSoon() {
  clearTimeout(saveTimer);
  saveTimer = setTimeout(save, 300);
}

function save() {
  if (currentView() !== "playground") return;
  const parameters = new URLSearchParams();
  if (prompt.value !== "") parameters.set("prompt", prompt.value.slice(0, MAX_PROMPT_IN_URL));
  if (compare.checked) parameters.set("compare", "1");
  if (form.elements.view.value !== "text") parameters.set("view", form.elements.view.value);
  for (const column of activeColumns()) column.settings.writeTo(parameters);
  const query = parameters.toString();
  if (query === "" && location.hash === "") return;
  history.replaceState(null, "", query === "" ? "#playground" : `#playground?${query}`);
}

function restore() {
  const query = location.hash.split("?")[1];
  if (currentView() !== "playground" || query === undefined) return;
  const parameters = new URLSearchParams(query);
  prompt.value = parameters.get("prompt") ?? "";
  compare.checked = parameters.get("compare") === "1";
  form.elements.view.value = parameters.get("view") === "tokens" ? "tokens" : "text";
  for (const column of columns) column.settings.readFrom(parameters);
  showColumns();
  showView();
}

function currentView() {
  return location.hash.startsWith("#tokenizer") ? "tokenizer" : "playground";
}

function showCurrentView() {
  const view = currentView();
  find("playground-view").hidden = view !== "playground";
  find("tokenizer-view").hidden = view !== "tokenizer";
  document.title = `${view === "tokenizer" ? "Tokenizer" : "Playground"} · groundup`;
}

async function meetModel() {
  try {
    const model = await nameModel(find("model-note"));
    for (const column of columns) column.contextLength = model.context_length;
    offerPrompts(model.prompts);
  } catch (error) {
    problem.textContent = readProblem(error);
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  generate();
});
stopButton.addEventListener("click", () => running?.abort());
prompt.addEventListener("input", saveSoon);
compare.addEventListener("change", () => {
  showColumns();
  saveSoon();
});
for (const choice of form.elements.view) {
  choice.addEventListener("change", () => {
    showView();
    saveSoon();
  });
}
document.addEventListener("keydown", (event) => {
  if (currentView() !== "playground" || document.querySelector("dialog[open]")) return;
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    generate();
  } else if (event.key === "Escape") {
    running?.abort();
  }
});
addEventListener("hashchange", () => {
  showCurrentView();
  restore();
});

if (navigator.platform.startsWith("Mac")) find("generate-keys").textContent = "⌘ ↵";
showCurrentView();
showColumns();
showView();
restore();
meetModel();
