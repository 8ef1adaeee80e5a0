// The server's models, and the menu that selects one.

import { element, formatCount, recall, remember, request } from "./shell.js";

let listed = null;

/** The models of /v1/models, requested once. */
export function listModels() {
  listed ??= request("/v1/models")
    .then((answer) => answer.json())
    .then(({ data }) => data);
  listed.catch(() => (listed = null));
  return listed;
}

/** Describes the selected model in `note`, with a menu before it if there are several. The selection
 *  applies to all pages. Calls `onChoose(model)` now and after each change. */
export async function offerModels(note, onChoose) {
  const models = await listModels();
  const menu = new ModelMenu(models, (model) => {
    note.textContent = describeModel(model, models.length === 1);
    remember("model", model.id);
    onChoose(model);
  });
  menu.root.hidden = models.length === 1;
  note.before(menu.root);
  menu.choose(recall("model"));
}

/** A menu that is not in the page yet; call `choose` before use. */
export class ModelMenu {
  #models;
  #onChoose;

  constructor(models, onChoose, properties = { ariaLabel: "Model" }) {
    this.#models = models;
    this.#onChoose = onChoose;
    this.root = element("select", { className: "model-menu", ...properties }, ...models.map(({ id }) => new Option(id, id)));
    this.root.addEventListener("change", () => this.choose(this.root.value));
  }

  /** Selects a model by name; an unknown name selects the first. */
  choose(name) {
    const model = this.#models.find(({ id }) => id === name) ?? this.#models[0];
    this.root.value = model.id;
    this.#onChoose(model);
  }
}

export function describeModel(model, withName = false) {
  if (model.error) return model.error;
  return [
    withName && model.id,
    model.step !== null && `step ${formatCount(model.step)}`,
    `context of ${formatCount(model.context_length)} tokens`,
    `vocabulary of ${formatCount(model.vocab_size)}`,
  ]
    .filter(Boolean)
    .join(" · ");
}
