// The models that the server has, and the menus that choose one of them.

import { element, formatCount, recall, remember, request } from "./shell.js";

let listed = null;

/** All models as /v1/models tells of them, asked for once. */
export function listModels() {
  listed ??= request("/v1/models")
    .then((answer) => answer.json())
    .then(({ data }) => data);
  listed.catch(() => (listed = null));
  return listed;
}

/** Says in `note` which model is chosen, with a menu before it if there are several; the choice
 *  holds for all pages. `onChoose(model)` is called now and for each other choice. */
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

/** A menu without a place yet; `choose` it a model before it is used. */

export class ModelMenu {
  #models;
  #onChoose;

  constructor(models, onChoose, properties = { ariaLabel: "Model" }) {
    this.#models = models;
    this.#onChoose = onChoose;
    this.root = element("select", { className: "model-menu", ...properties }, ...models.map(({ id }) => new Option(id, id)));
    this.root.addEventListener("change", () => this.choose(this.root.value));
  }

  /** A name that is not served stands for the first model. */
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
