// The chat page: one conversation, each answer streamed and open to a look at its tokens.

import { streamChat } from "./completions.js";
import { offerModels } from "./models.js";
import { Settings } from "./settings.js";
import { element, readProblem } from "./shell.js";
import { Answer, fillInspector, fillLegend } from "./tokens.js";

const find = (id) => document.getElementById(id);
const [chat, form, input, system] = ["chat", "chat-form", "message", "system"].map(find);
const [messages, problem, announcer] = ["messages", "problem", "announcer"].map(find);
const inspector = chat.querySelector(".inspector");
const settings = new Settings("chat-", { root: chat });

// What has been said, { role, content, root } each; `numForgotten` of them no longer fit.
let talk = [];
let numForgotten = 0;
let running = null;
let model = null;

async function send() {
  const content = input.value.trim();
  if (running !== null || content === "") return;
  problem.textContent = "";
  input.value = "";
  const question = addMessage("user", content, element("p", { className: "output-text" }, content));
  const run = new AbortController();
  running = run;
  showRunning(true);
  const parts = {
    text: element("p", { className: "output-text" }),
    tokens: element("div", { className: "output-tokens", role: "group", ariaLabel: "Tokens" }),
    results: element("dl", { className: "results row" }),
  };
  const said = addMessage("assistant", "", parts.text, parts.tokens, parts.results);
  const answer = new Answer({ ...parts, inspector });
  const body = { model: model?.id, ...settings.toRequest(Math.floor(Math.random() * 2 ** 31)) };
  said.root.dataset.state = "streaming";
  try {
    const outcome = await answer.show(streamFitting(body, run.signal), keepInView);
    parts.results.replaceChildren(...answer.buildResults(outcome, body.seed));
  } catch (error) {
    problem.textContent = readProblem(error);
  }
  if (running !== run) return;
  said.root.dataset.state = "done";
  said.content = announcer.textContent = answer.text;
  if (answer.tokens.length === 0 && (problem.textContent !== "" || run.signal.aborted)) {
    // Nothing came: the question goes back to where it can be asked again.
    talk = talk.filter((one) => one !== question && one !== said);
    question.root.remove();
    said.root.remove();
    input.value = content;
  }
  running = null;
  showRunning(false);
  input.focus();
}

/** The stream of an answer; if the conversation is too long its oldest turns are left out. */
async function* streamFitting(body, signal) {
  const before = system.value.trim();
  const head = before === "" ? [] : [{ role: "system", content: before }];
  const turns = talk.slice(0, -1).map(({ role, content }) => ({ role, content }));
  for (;;) {
    try {
      yield* streamChat({ messages: [...head, ...turns.slice(numForgotten)], ...body }, signal);
      return;
    } catch (error) {
      const isTooLong = error.code === "context_length_exceeded";
      if (!isTooLong || turns.length - numForgotten < 3) throw error;
      numForgotten += 2;
      for (const { root } of talk.slice(0, numForgotten)) root.dataset.forgotten = "true";
    }
  }
}

function addMessage(role, content, ...parts) {
  const name = element("h2", { className: "message-role" }, role === "user" ? "You" : "Model");
  const said = { role, content, root: element("li", { className: "message", dataset: { role } }, name, ...parts) };
  talk.push(said);
  messages.append(said.root);
  keepInView();
  return said;
}

// The page moves on with an answer for as long as the visitor is at its end.
function keepInView() {
  const { scrollHeight } = document.documentElement;
  if (innerHeight + scrollY >= scrollHeight - 200) scrollTo(0, scrollHeight);
}

function beginAnew() {
  running?.abort();
  running = null;
  talk = [];
  numForgotten = 0;
  messages.replaceChildren();
  problem.textContent = "";
  showRunning(false);
  fillInspector(inspector, null);
  input.focus();
}

function showRunning(isRunning) {
  find("send").hidden = isRunning;
  find("stop").hidden = !isRunning;
  form.setAttribute("aria-busy", String(isRunning));
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
form.addEventListener("change", () => (chat.dataset.view = form.elements.view.value));
input.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
find("stop").addEventListener("click", () => running?.abort());
find("again").addEventListener("click", beginAnew);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) running?.abort();
});

fillLegend(chat.querySelector(".legend"));
fillInspector(inspector, null);
offerModels(find("model-note"), (chosen) => {
  model = chosen;
  settings.setInitial(model.generation);
  chat.hidden = !model.has_chat_template;
  find("no-template").hidden = model.has_chat_template;
  find("tune-command").textContent = `groundup tune ${model.id} chats.jsonl`;
  if (model.has_chat_template) input.focus();
}).catch((error) => {
  chat.hidden = false;
  problem.textContent = readProblem(error);
});
