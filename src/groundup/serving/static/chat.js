// The chat page: a conversation with branches, streamed answers with inspectable tokens, and the
// conversations stored in this browser.

import { streamChat } from "./completions.js";
import { Conversation, keepConversation, listConversations, toJsonLines } from "./conversations.js";
import { offerModels } from "./models.js";
import { Settings } from "./settings.js";
import { countOf, element, readProblem, request } from "./shell.js";
import { Answer, fillInspector, fillLegend } from "./tokens.js";

const find = (id) => document.getElementById(id);
const [chat, form, input, system] = ["chat", "chat-form", "message", "system"].map(find);
const [messages, problem, announcer] = ["messages", "problem", "announcer"].map(find);
const inspector = chat.querySelector(".inspector");
const settings = new Settings("chat-", { root: chat });

let conversation = new Conversation();
// Elements of each message, { root, parts, actions }, by id.
let views = new Map();
// Number of leading messages that no longer fit into the context.
let numForgotten = 0;
let running = null;
// Saves a partial answer when the page is closed.
let keepPart = () => {};
let model = null;

function send() {
  const content = input.value.trim();
  if (running !== null || model === null || content === "") return;
  input.value = "";
  ask(conversation.add(conversation.branch.at(-1), "user", content));
}

/** Streams an answer to a user message. */
async function ask(question) {
  const run = new AbortController();
  const asked = conversation;
  const before = asked.versionsOf({ parent: question.id }).find(({ id }) => id === asked.chosen[question.id]);
  const said = asked.add(question, "assistant", "", { model: model.id });
  running = run;
  problem.textContent = "";
  keep();
  showAll();
  const { root, parts } = views.get(said.id);
  const answer = new Answer({ ...parts, inspector });
  let hasFailed = false;
  const body = { model: model.id, ...settings.toRequest(Math.floor(Math.random() * 2 ** 31)) };
  keepPart = () => {
    said.content = answer.text;
    keep(asked);
  };
  root.dataset.state = "streaming";
  keepInView();
  try {
    const events = streamFitting(asked.turnsUpTo(question), body, run.signal);
    const outcome = await answer.show(events, keepInView);
    parts.results.replaceChildren(...answer.buildResults(outcome, body.seed));
  } catch (error) {
    hasFailed = true;
    if (running === run) problem.textContent = readProblem(error);
  }
  root.dataset.state = "done";
  keepPart = () => {};
  said.content = answer.text;
  if (answer.tokens.length === 0 && (run.signal.aborted || hasFailed)) {
    // No answer: put a new question back into the input field.
    asked.remove(said);
    if (before !== undefined) asked.show(before);
    else if (running === run && input.value === "" && asked.branch.at(-1) === question) {
      input.value = question.content;
      asked.remove(question);
    }
  }
  keep(asked);
  if (running !== run) return;
  running = null;
  announcer.textContent = answer.text;
  showAll();
  input.focus();
}

/** Streams an answer; drops the oldest turns if the conversation exceeds the context. */
async function* streamFitting(turns, body, signal) {
  const head = turns[0].role === "system" ? turns.slice(0, 1) : [];
  const rest = turns.slice(head.length);
  numForgotten = Math.min(numForgotten, rest.length - 1);
  for (;;) {
    try {
      yield* streamChat({ messages: [...head, ...rest.slice(numForgotten)], ...body }, signal);
      return;
    } catch (error) {
      const isTooLong = error.code === "context_length_exceeded";
      if (!isTooLong || rest.length - numForgotten < 3) throw error;
      numForgotten += 2;
      markForgotten();
    }
  }
}

/** Saves the conversation and puts its id into the URL, so that a reload shows it again. */
function keep(changed = conversation) {
  changed.changed = Date.now();
  if (!keepConversation(changed)) problem.textContent = "The browser's storage is full and the conversation is not saved: export it, or delete others.";
  if (changed === conversation) history.replaceState(null, "", changed.messages.length ? `#${changed.id}` : location.pathname);
  showHistory();
}

function showAll() {
  const branch = conversation.branch;
  for (const message of branch) {
    const view = views.get(message.id) ?? buildView(message);
    views.set(message.id, view);
    view.actions.replaceChildren(...buildActions(message));
  }
  messages.replaceChildren(...branch.map(({ id }) => views.get(id).root));
  markForgotten();
  find("send").hidden = running !== null;
  find("stop").hidden = running === null;
  form.setAttribute("aria-busy", String(running !== null));
}

function markForgotten() {
  [...messages.children].forEach((root, index) => root.toggleAttribute("data-forgotten", index < numForgotten));
}

function buildView({ role, content, model: name }) {
  const title = role === "user" ? "You" : (name ?? "Model");
  const parts = {
    text: element("p", { className: "output-text" }, content),
    tokens: element("div", { className: "output-tokens", role: "group", ariaLabel: "Tokens" }),
    results: element("dl", { className: "results row" }),
  };
  const actions = element("div", { className: "row message-actions" });
  const heading = element("h2", { className: "message-role" }, title);
  const body = role === "user" ? [parts.text] : [parts.text, parts.tokens, parts.results];
  const root = element("li", { className: "message", dataset: { role } }, heading, ...body, actions);
  return { root, parts, actions };
}

function buildActions(message) {
  if (running !== null) return [];
  const isAnswer = message.role === "assistant";
  const versions = conversation.versionsOf(message);
  const place = versions.indexOf(message);
  const turn = (offset) => () => {
    conversation.show(versions[place + offset]);
    changeBranch();
  };
  const rate = (rating, mark, label) => {
    const state = { ariaPressed: String(message.rating === rating), disabled: message.rating !== undefined };
    return isAnswer && model?.can_rate && buildAction(mark, () => rateAnswer(message, rating), { ariaLabel: label, ...state });
  };
  return [
    versions.length > 1 && buildAction("‹", turn(-1), { ariaLabel: "Previous version", disabled: place === 0 }),
    versions.length > 1 && element("span", {}, `${place + 1} of ${versions.length}`),
    versions.length > 1 && buildAction("›", turn(1), { ariaLabel: "Next version", disabled: place === versions.length - 1 }),
    isAnswer && buildAction("Regenerate", () => ask(conversation.parentOf(message))),
    buildAction("Copy", (event) => copy(message, event.target)),
    buildAction("Edit", () => edit(message)),
    buildAction("Delete", () => {
      conversation.remove(message);
      changeBranch();
    }),
    rate("up", "Good", "Good answer"),
    rate("down", "Bad", "Bad answer"),
  ].filter(Boolean);
}

function buildAction(text, onClick, properties = {}) {
  const button = element("button", { type: "button", className: "action", ...properties }, text);
  button.addEventListener("click", onClick);
  return button;
}

function changeBranch() {
  numForgotten = 0;
  problem.textContent = "";
  keep();
  showAll();
}

async function copy({ content }, button) {
  try {
    await navigator.clipboard.writeText(content);
    button.textContent = "Copied";
  } catch {
    problem.textContent = "The browser blocked copying: select the text and copy it.";
  }
}

/** Replaces a message by a text area; saving adds a new version of the message. */
function edit(message) {
  const { root, parts, actions } = views.get(message.id);
  const field = element("textarea", { className: "reading", ariaLabel: "Edit the message", value: message.content });
  const save = element("button", { className: "button primary" }, message.role === "user" ? "Save and ask" : "Save");
  const cancel = buildAction("Cancel", () => close(), { className: "button" });
  const editor = element("form", { className: "stack field" }, field, element("div", { className: "row" }, save, cancel));
  const close = () => {
    editor.remove();
    root.removeAttribute("data-editing");
  };
  editor.addEventListener("submit", (event) => {
    event.preventDefault();
    const content = field.value.trim();
    if (content === "" || running !== null) return;
    close();
    const version = conversation.add(conversation.parentOf(message), message.role, content, { model: message.model });
    changeBranch();
    if (message.role === "user") ask(version);
  });
  root.dataset.editing = "true";
  actions.before(editor);
  field.focus();
}

/** Saves the rating in the run folder; a message can be rated once. */
async function rateAnswer(message, rating) {
  try {
    await request("/api/rating", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ model: message.model, messages: conversation.turnsUpTo(message), rating }),
    });
    message.rating = rating;
    changeBranch();
  } catch (error) {
    problem.textContent = readProblem(error);
  }
}

// Scrolls along with an answer while the end of the page is in view.
function keepInView() {
  const { scrollHeight } = document.documentElement;
  if (innerHeight + scrollY >= scrollHeight - 200) scrollTo(0, scrollHeight);
}

/** Shows another conversation, or a new one. */
function open(other = new Conversation({ system: system.value })) {
  running?.abort();
  running = null;
  conversation = other;
  views = new Map();
  numForgotten = 0;
  system.value = conversation.system;
  problem.textContent = "";
  history.replaceState(null, "", conversation.messages.length ? `#${conversation.id}` : location.pathname);
  showAll();
  showHistory();
  fillInspector(inspector, null);
  input.focus();
}

function showHistory() {
  const kept = listConversations();
  find("history-note").textContent = kept.length === 0 ? "none yet" : String(kept.length);
  find("export-all").disabled = kept.length === 0;
  find("export").disabled = toJsonLines([conversation]) === "";
  find("history-list").replaceChildren(
    ...kept.map((one) => {
      const isOpen = one.id === conversation.id;
      const go = buildAction(one.title, () => open(isOpen ? conversation : one), { className: "history-title cut", ariaCurrent: String(isOpen) });
      const remove = buildAction("×", () => removeKept(one), { ariaLabel: `Delete ${one.title}` });
      return element("li", {}, go, remove);
    }),
  );
}

function removeKept(one) {
  const isOpen = one.id === conversation.id;
  const gone = isOpen ? conversation : one;
  gone.messages = [];
  keepConversation(gone);
  if (isOpen) open();
  else showHistory();
}

function download(conversations, name) {
  const url = URL.createObjectURL(new Blob([toJsonLines(conversations)], { type: "application/jsonl" }));
  element("a", { href: url, download: `${name}.jsonl` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

function openFromAddress() {
  const kept = listConversations().find(({ id }) => `#${id}` === location.hash);
  if (kept === undefined || kept.id !== conversation.id) open(kept);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
form.addEventListener("change", () => (chat.dataset.view = form.elements.view.value));
system.addEventListener("input", () => {
  conversation.system = system.value;
  numForgotten = 0;
});
system.addEventListener("change", () => keep());
input.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
find("stop").addEventListener("click", () => running?.abort());
find("again").addEventListener("click", () => open());
find("export").addEventListener("click", () => download([conversation], "chat"));
find("export-all").addEventListener("click", () => download(listConversations(), "chats"));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) running?.abort();
});
addEventListener("hashchange", openFromAddress);
addEventListener("pagehide", () => keepPart());

find("history").open = innerWidth > 1000;
fillLegend(chat.querySelector(".legend"));
openFromAddress();
offerModels(find("model-note"), (chosen) => {
  model = chosen;
  numForgotten = 0;
  settings.setInitial(model.generation);
  find("chat-layout").hidden = !model.has_chat_template;
  find("no-template").hidden = model.has_chat_template;
  find("tune-command").textContent = `groundup tune ${model.id} chats.jsonl`;
  showAll();
  if (model.has_chat_template) input.focus();
}).catch((error) => {
  find("chat-layout").hidden = false;
  problem.textContent = readProblem(error);
});
