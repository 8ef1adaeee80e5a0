// The chat page: a conversation with branches, each answer streamed and open to a look at its
// tokens, and the conversations that this browser keeps.

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
// How each message looks, { root, parts }, by its id; the first `numForgotten` no longer fit.
let looks = new Map();
let numForgotten = 0;
let running = null;
// Keeps what has come of the answer, for a page that is left.
let keepPart = () => {};
let model = null;

function send() {
  const content = input.value.trim();
  if (running !== null || model === null || content === "") return;
  input.value = "";
  ask(conversation.add(conversation.branch.at(-1), "user", content));
}

/** Streams an answer to a message of the visitor. */
async function ask(question) {
  const run = new AbortController();
  const asked = conversation;
  const before = asked.versionsOf({ parent: question.id }).find(({ id }) => id === asked.chosen[question.id]);
  const said = asked.add(question, "assistant", "", { model: model.id });
  running = run;
  problem.textContent = "";
  keep();
  showAll();
  const { root, parts } = looks.get(said.id);
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
    // Nothing came: a new question goes back to where it can be asked again.
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

/** The stream of an answer; if the conversation is too long its oldest turns are left out. */
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

/** Keeps what has been said; what is shown in the address is found again after a reload. */
function keep(changed = conversation) {
  changed.changed = Date.now();
  if (!keepConversation(changed)) problem.textContent = "This browser has no room to keep the conversation: export it.";
  if (changed === conversation) history.replaceState(null, "", changed.messages.length ? `#${changed.id}` : location.pathname);
  showHistory();
}

function showAll() {
  const branch = conversation.branch;
  for (const message of branch) {
    const look = looks.get(message.id) ?? buildLook(message);
    looks.set(message.id, look);
    look.actions.replaceChildren(...buildActions(message));
  }
  messages.replaceChildren(...branch.map(({ id }) => looks.get(id).root));
  markForgotten();
  find("send").hidden = running !== null;
  find("stop").hidden = running === null;
  form.setAttribute("aria-busy", String(running !== null));
}

function markForgotten() {
  [...messages.children].forEach((root, index) => root.toggleAttribute("data-forgotten", index < numForgotten));
}

function buildLook({ role, content, model: name }) {
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
    versions.length > 1 && buildAction("‹", turn(-1), { ariaLabel: "Version before", disabled: place === 0 }),
    versions.length > 1 && element("span", {}, `${place + 1} of ${versions.length}`),
    versions.length > 1 && buildAction("›", turn(1), { ariaLabel: "Version after", disabled: place === versions.length - 1 }),
    isAnswer && buildAction("Regenerate", () => ask(conversation.parentOf(message))),
    buildAction("Copy", (event) => copy(message, event.target)),
    buildAction("Edit", () => edit(message)),
    buildAction("Delete", () => {
      conversation.remove(message);
      changeBranch();
    }),
    rate("up", "👍", "Good answer"),
    rate("down", "👎", "Bad answer"),
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
    problem.textContent = "This browser does not let the page copy: select the text.";
  }
}

/** A text area in place of a message; saving makes another version of it. */
function edit(message) {
  const { root, parts, actions } = looks.get(message.id);
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

/** The server keeps it with the run, once. */
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

// The page moves on with an answer for as long as the visitor is at its end.
function keepInView() {
  const { scrollHeight } = document.documentElement;
  if (innerHeight + scrollY >= scrollHeight - 200) scrollTo(0, scrollHeight);
}

/** Shows another conversation, or a new one. */
function open(other = new Conversation({ system: system.value })) {
  running?.abort();
  running = null;
  conversation = other;
  looks = new Map();
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
