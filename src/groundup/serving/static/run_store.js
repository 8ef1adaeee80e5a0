// The page's data: the list of runs, the metrics of the selected ones, and their colors.

import { request } from "./shell.js";

export const MAX_CHOSEN = 8;
const LINES_AT_FIRST = 3000;
const LINES_AT_MOST = 12000;
const COLOURS_KEY = "groundup-run-colours";

export class RunStore {
  constructor() {
    this.runs = [];
    this.served = null;
    this.folder = "runs";
    this.clockOffset = null;
    this.curves = new Map();
    this.details = new Map();
    this.slots = readSlots();
  }

  /** Seconds since a time on the server's clock. */
  secondsSince(moment) {
    return moment === null ? null : Date.now() / 1000 + this.clockOffset - moment;
  }

  run(name) {
    return this.runs.find((run) => run.name === name);
  }

  /** Undefined until they have been fetched. */
  lines(name) {
    return this.curves.get(name)?.lines;
  }

  async refreshList() {
    const answer = await (await request("/api/runs")).json();
    this.runs = answer.runs;
    this.served = answer.served;
    this.folder = answer.folder;
    this.clockOffset = answer.now - Date.now() / 1000;
    const present = new Set(this.runs.map((run) => run.name));
    for (const known of [this.curves, this.details]) {
      for (const name of known.keys()) if (!present.has(name)) known.delete(name);
    }
  }

  /** Updates one run; resolves to true if anything is new. */
  async refreshRun(name) {
    const updated = this.run(name)?.updated;
    const curve = this.curves.get(name);
    if (curve !== undefined && curve.seenUpdate === updated && this.details.has(name)) return false;
    const [gotLines] = await Promise.all([this.#fetchLines(name), this.#fetchDetails(name)]);
    if (this.curves.has(name)) this.curves.get(name).seenUpdate = updated;
    return gotLines || curve === undefined;
  }

  /** The index of a run's color: the same on every visit, and unique among the selected runs. */
  slot(name, chosen) {
    const taken = new Set(chosen.filter((other) => other !== name).map((other) => this.slots[other]));
    let slot = this.slots[name];
    if (slot === undefined || taken.has(slot)) {
      slot = 1;
      while (taken.has(slot) && slot < MAX_CHOSEN) slot += 1;
      this.slots[name] = slot;
      writeSlots(this.slots);
    }
    return slot;
  }

  async #fetchLines(name) {
    const before = this.curves.get(name);
    const isTooLong = (before?.lines.length ?? 0) > LINES_AT_MOST;
    const query = new URLSearchParams({ limit: String(LINES_AT_FIRST) });
    if (before !== undefined && !isTooLong) {
      query.set("after", String(before.next));
      if (before.version) query.set("version", before.version);
    }
    const answer = await (await request(`${pathOf(name)}/metrics?${query}`)).json();
    // A concurrent request has already stored these lines.
    if (this.curves.get(name) !== before) return true;
    const isAnew = before === undefined || isTooLong || answer.restarted;
    this.curves.set(name, {
      lines: isAnew ? answer.lines : before.lines.concat(answer.lines),
      next: answer.next,
      version: answer.version,
    });
    return isAnew || answer.lines.length > 0;
  }

  async #fetchDetails(name) {
    this.details.set(name, await (await request(pathOf(name))).json());
  }
}

function pathOf(name) {
  return `/api/runs/${encodeURIComponent(name)}`;
}

// With storage disabled, colors are assigned anew on each visit.
function readSlots() {
  try {
    return Object.assign(Object.create(null), JSON.parse(localStorage.getItem(COLOURS_KEY)));
  } catch {
    return Object.create(null);
  }
}

function writeSlots(slots) {
  try {
    localStorage.setItem(COLOURS_KEY, JSON.stringify(slots));
  } catch {
    // Storage is full or disabled.
  }
}
