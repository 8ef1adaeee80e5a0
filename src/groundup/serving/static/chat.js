// The chat page: one conversation, each answer streamed and open to a look at its tokens.

import { Answer } from "./answer.js";
import { SentenceAnnouncer } from "./announcer.js";
import { streamChat } from "./completions.js";
import { fillInspector, fillLegend } from "./inspector.js";
import { Settings } from "./settings.js";
import { countOf, element, nameModel, readProblem } from "./shell.js";

const find = (id) => document.getElementById(id);
const [chat, form, input, system] = ["chat", "chat-form", "message", "system"].map(find);
const [messages, problem] = ["messages", "problem"].map(find);
const [sendButton, stopButton] = ["send", "stop"].map(find);
const [inspector, legend] = [".inspector", ".legend"].map((one) => chat.querySelector(one));
const announcer = new SentenceAnnouncer(find("announcer"));
const settings = new Settings("chat-", {
  grid: chat.querySelector(".settings-grid"),
  digest: chat.querySelector(".settings-digest"),
  initial: {},
  onChange: () => {},
});

// What has been said, { role, content, root } each; `numForgotten` of them no longer fit.
let talk = [];
let numForgotten = 0;
let running = null;
// The page moves on with an answer for as long as the visitor is at its end.
let isAtEnd = true;
let scrollFrame = 0;

async function send() {
  const content = input.value.trim();
  if (running !== null || content === "") return;
  problem.textContent = "";
  input.value = "";
  const question = addMessage("user", content, element("p", { className: "message-text" }, content));
  const run = new AbortController();
  running = run;
  showRunning(true);
  announcer.begin("Answering.");
  const { answer, text, error } = await hearAnswer(run.signal);
  if (running !== run) return;
  running = null;
  showRunning(false);
  if (error !== null) problem.textContent = readProblem(error);
  if (text === "" && (error !== null || run.signal.aborted)) {
    // Nothing came: the question goes back to where it can be asked again.
    question.remove();
    talk = talk.filter(({ root }) => root !== question);
    input.value = content;
  }
  announcer.end(error === null ? `Finished: ${countOf(answer.tokens.length, "token")}.` : "");
  input.focus();
}

/** Streams the model's next turn into the page; gives what came, and the error it ended with. */
async function hearAnswer(signal) {
  const parts = {
    text: element("p", { className: "output-text" }),
    tokens: element("div", {
      className: "output-tokens",
      role: "listbox",
      ariaOrientation: "horizontal",
      ariaLabel: `Tokens of answer ${(talk.length + 1) / 2}`,
    }),
    results: element("dl", { className: "results" }),
  };
  const request = talk.map(({ role, content }) => ({ role, content }));
  const root = addMessage("assistant", "", parts.text, parts.tokens, parts.results);
  const answer = new Answer({ ...parts, inspector });
  markLookedAt(null);
  const body = settings.toRequest(Math.floor(Math.random() * 2 ** 31));
  let text = "";
  let error = null;
  root.dataset.state = "streaming";
  try {
    const outcome = await answer.show(streamFitting(request, body, signal), (piece) => {
      text += piece;
      announcer.add("answer", piece);
      scrollFrame ||= requestAnimationFrame(keepInView);
    });
    parts.results.replaceChildren(...answer.buildResults(outcome, body.seed));
  } catch (caught) {
    error = caught;
  }
  root.dataset.state = "done";
  const said = talk.find((one) => one.root === root);
  if (said !== undefined) said.content = text;
  if (text === "" && (error !== null || signal.aborted)) {
    talk = talk.filter((one) => one !== said);
    root.remove();
  }
  return { answer, text, error };
}

/** The stream of an answer; where the conversation is too long its oldest turns are left out. */
async function* streamFitting(request, body, signal) {
  const before = system.value.trim();
  const head = before === "" ? [] : [{ role: "system", content: before }];
  for (;;) {
    try {
      yield* streamChat({ messages: [...head, ...request.slice(numForgotten)], ...body }, signal);
      return;
    } catch (error) {
      const isTooLong = error.code === "context_length_exceeded";
      if (!isTooLong || request.length - numForgotten < 3) throw error;
      for (const { root } of talk.slice(0, numForgotten + 2)) root.dataset.forgotten = "true";
      numForgotten += 2;
    }
  }
}

function addMessage(role, content, ...parts) {
  const name = element("h2", { className: "message-role" }, role === "user" ? "You" : "Model");
  const root = element("li", { className: "message", dataset: { role } }, name, ...parts);
  talk.push({ role, content, root });
  messages.append(root);
  isAtEnd = true;
  keepInView();
  return root;
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
  sendButton.hidden = isRunning;
  stopButton.hidden = !isRunning;
  form.setAttribute("aria-busy", String(isRunning));
}

function showView() {
  const { value } = form.elements.view;
  chat.dataset.view = value;
  inspector.hidden = legend.hidden = value !== "tokens";
}

// One inspector for all answers: the chosen token of the others is not the one it shows.
function markLookedAt(target) {
  for (const { root } of talk) root.toggleAttribute("data-looked-at", root.contains(target));
}

function keepInView() {
  scrollFrame = 0;
  if (isAtEnd) scrollTo(0, document.documentElement.scrollHeight);
}

async function meetModel() {
  try {
    const model = await nameModel(find("model-note"));
    chat.hidden = !model.has_chat_template;
    find("no-template").hidden = model.has_chat_template;
    find("tune-command").textContent = `groundup tune ${model.id} chats.jsonl`;
    if (model.has_chat_template) input.focus();
  } catch (error) {
    chat.hidden = false;
    problem.textContent = readProblem(error);
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
input.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
messages.addEventListener("focusin", ({ target }) => markLookedAt(target));
stopButton.addEventListener("click", () => running?.abort());
find("again").addEventListener("click", beginAnew);
for (const choice of form.elements.view) choice.addEventListener("change", showView);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) running?.abort();
});

addEventListener("scroll", () => {
  isAtEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 120;
});

fillLegend(legend);
fillInspector(inspector, null);
showView();
meetModel();
