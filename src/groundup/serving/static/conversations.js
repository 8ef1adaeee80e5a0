// Conversations as trees of messages, of which one branch is shown, and where this browser keeps
// them. No page here.

import { recall, remember } from "./shell.js";

const KEY = "chats";
const MOST_KEPT = 200;
const TITLE_LENGTH = 60;
const ROOT = 0;

/** Messages are { id, parent, role, content, model, rating }; `chosen` has for each parent the
 *  message under it that is shown, where that is not the newest. */
export class Conversation {
  constructor({ id, system, messages, chosen, next, changed } = {}) {
    this.id = id ?? Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
    this.system = system ?? "";
    this.messages = messages ?? [];
    this.chosen = chosen ?? {};
    this.next = next ?? ROOT + 1;
    this.changed = changed ?? Date.now();
  }

  get title() {
    const first = this.branch[0]?.content.trim() ?? "";
    return first.length > TITLE_LENGTH ? `${first.slice(0, TITLE_LENGTH)}…` : first;
  }

  /** The messages that are shown, from the first on. */
  get branch() {
    const shown = [];
    let parent = ROOT;
    for (;;) {
      const below = this.#below(parent);
      const next = below.find(({ id }) => id === this.chosen[parent]) ?? below.at(-1);
      if (next === undefined) return shown;
      shown.push(next);
      parent = next.id;
    }
  }

  /** Adds a message under another, or at the beginning, and shows it. */
  add(parent, role, content, more = {}) {
    const id = this.next++;
    const message = { id, parent: parent?.id ?? ROOT, role, content, ...more };
    this.messages.push(message);
    this.chosen[message.parent] = id;
    return message;
  }

  /** The message that this one follows. */
  parentOf({ parent }) {
    return this.messages.find(({ id }) => id === parent) ?? null;
  }

  /** The versions of a message, itself included. */
  versionsOf({ parent }) {
    return this.#below(parent);
  }

  show({ id, parent }) {
    this.chosen[parent] = id;
  }

  /** Removes a message and all that follows it; another version is shown, if there is one. */
  remove(message) {
    const gone = new Set([message.id]);
    // A message always has a larger id than the one it follows.
    for (const { id, parent } of this.messages) if (gone.has(parent)) gone.add(id);
    this.messages = this.messages.filter(({ id }) => !gone.has(id));
    for (const id of [message.parent, ...gone]) delete this.chosen[id];
  }

  /** What an API takes: the messages up to this one. */
  turnsUpTo(message) {
    const branch = this.branch;
    const turns = branch.slice(0, branch.indexOf(message) + 1).map(({ role, content }) => ({ role, content }));
    const system = this.system.trim();
    return system === "" ? turns : [{ role: "system", content: system }, ...turns];
  }

  #below(parent) {
    return this.messages.filter((message) => message.parent === parent);
  }
}

/** All that is kept, the last changed first. */
export function listConversations() {
  try {
    const kept = JSON.parse(recall(KEY) ?? "[]").map((one) => new Conversation(one));
    return kept.sort((a, b) => b.changed - a.changed);
  } catch {
    return [];
  }
}

/** Keeps a conversation, or removes it if nothing is said in it any more; what is full loses its
 *  oldest. Whether there was room. */
export function keepConversation(conversation) {
  // Another tab may have written since.
  const kept = listConversations().filter(({ id }) => id !== conversation.id);
  if (conversation.messages.length > 0) kept.unshift(conversation);
  for (let count = Math.min(kept.length, MOST_KEPT); ; count = Math.floor(count * 0.9)) {
    if (remember(KEY, JSON.stringify(kept.slice(0, count)))) return true;
    if (count <= 1) return false;
  }
}

/** JSON lines as `groundup tune` reads them: what is shown of each, up to its last answer. */
export function toJsonLines(conversations) {
  const lines = conversations
    .map((conversation) => {
      const last = conversation.branch.findLast(({ role, content }) => role === "assistant" && content !== "");
      return last && JSON.stringify({ messages: conversation.turnsUpTo(last) });
    })
    .filter(Boolean);
  return lines.map((line) => `${line}\n`).join("");
}
