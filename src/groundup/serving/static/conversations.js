// Conversations as trees of messages with one visible branch, and their storage in this browser.
// Does not touch the DOM.

import { recall, remember } from "./shell.js";

const KEY = "chats";
const MOST_KEPT = 200;
const TITLE_LENGTH = 60;
const ROOT = 0;

/** Messages are { id, parent, role, content, model, rating }. `chosen` maps a parent's id to its
 *  visible child; by default the newest child is visible. */
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

  /** The visible messages, first to last. */
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

  /** Adds a message below its parent, or at the root, and makes it visible. */
  add(parent, role, content, more = {}) {
    const id = this.next++;
    const message = { id, parent: parent?.id ?? ROOT, role, content, ...more };
    this.messages.push(message);
    this.chosen[message.parent] = id;
    return message;
  }

  /** The parent message, or null. */
  parentOf({ parent }) {
    return this.messages.find(({ id }) => id === parent) ?? null;
  }

  /** All versions of a message, including itself. */
  versionsOf({ parent }) {
    return this.#below(parent);
  }

  show({ id, parent }) {
    this.chosen[parent] = id;
  }

  /** Removes a message and its descendants; another version becomes visible, if there is one. */
  remove(message) {
    const gone = new Set([message.id]);
    // A message's id is always larger than its parent's.
    for (const { id, parent } of this.messages) if (gone.has(parent)) gone.add(id);
    this.messages = this.messages.filter(({ id }) => !gone.has(id));
    for (const id of [message.parent, ...gone]) delete this.chosen[id];
  }

  /** The messages up to this one, in the API's format. */
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

/** All stored conversations, most recently changed first. */
export function listConversations() {
  try {
    const kept = JSON.parse(recall(KEY) ?? "[]").map((one) => new Conversation(one));
    return kept.sort((a, b) => b.changed - a.changed);
  } catch {
    return [];
  }
}

/** Stores a conversation, or removes it if it is empty. Returns whether there was room. */
export function keepConversation(conversation) {
  // Read again: another tab may have written.
  const kept = listConversations().filter(({ id }) => id !== conversation.id);
  if (conversation.messages.length > 0) kept.unshift(conversation);
  return remember(KEY, JSON.stringify(kept.slice(0, MOST_KEPT)));
}

/** JSON lines for `groundup tune`: each visible branch up to its last answer. */
export function toJsonLines(conversations) {
  const lines = conversations
    .map((conversation) => {
      const last = conversation.branch.findLast(({ role, content }) => role === "assistant" && content !== "");
      return last && JSON.stringify({ messages: conversation.turnsUpTo(last) });
    })
    .filter(Boolean);
  return lines.map((line) => `${line}\n`).join("");
}
