// Reads a stream to screen readers: whole sentences, a few at a time, never word by word.

const PAUSE_MILLISECONDS = 3000;

export class SentenceAnnouncer {
  #region;
  #waiting = new Map();
  #timer = 0;

  constructor(region) {
    this.#region = region;
  }

  begin(message) {
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#waiting.clear();
    this.#region.replaceChildren();
    this.#say(message);
  }

  add(name, text) {
    this.#waiting.set(name, (this.#waiting.get(name) ?? "") + text);
    this.#timer ||= setTimeout(() => this.#saySentences(), PAUSE_MILLISECONDS);
  }

  end(message) {
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#say([...this.#waiting.keys()].map((name) => this.#take(name, Infinity)).join(" "));
    this.#say(message);
  }

  #saySentences() {
    this.#timer = 0;
    for (const [name, text] of this.#waiting) {
      const end = Math.max(...[".", "!", "?", "\n"].map((sign) => text.lastIndexOf(sign))) + 1;
      if (end > 0) this.#say(this.#take(name, end));
    }
  }

  #take(name, end) {
    const text = this.#waiting.get(name);
    this.#waiting.set(name, text.slice(end));
    const piece = text.slice(0, end).trim();
    return piece !== "" && this.#waiting.size > 1 ? `${name}: ${piece}` : piece;
  }

  #say(message) {
    if (message.trim() === "") return;
    const line = document.createElement("p");
    line.textContent = message;
    this.#region.append(line);
  }
}
