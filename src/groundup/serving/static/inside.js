// Inside the model: a prompt's tokens, attention, predictions of each layer, and sampling.

import { offerModels } from "./models.js";
import { Settings } from "./settings.js";
import { countOf, element, formatProbability, onThemeChange, readProblem, request, themeColor } from "./shell.js";
import { buildBar, fillLegend, levelOf, moveByArrows, visibleBytes } from "./tokens.js";

const EXAMPLE = "Once upon a time there was";
const PAUSE_MILLISECONDS = 300;
const CELL_PIXELS = 6;
const NUM_HUES = 4;
const RULES = {
  model: "The model",
  repetition_penalty: "Repeat penalty",
  temperature: "Temperature",
  top_k: "Top-k",
  top_p: "Top-p",
  min_p: "Min-p",
};

const find = (id) => document.getElementById(id);
const [form, prompt, problem, layer, heads] = ["prompt-form", "prompt", "problem", "layer", "heads"].map(find);
const [chips, neighbours, weights, lens] = ["chips", "neighbours", "weights", "lens"].map(find);

let model;
let found = null;
let attention = null;
let chosen = 0;
let head = 0;
let timer = 0;
let latest = null;

const names = ["temperature", "top_p", "min_p", "repetition_penalty", "top_k", "seed"];
const settings = new Settings("", { root: form, names, initial: { seed: "0" } });

async function look() {
  latest?.abort();
  latest = new AbortController();
  try {
    const response = await request("/api/inside", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ model, prompt: prompt.value, ...settings.toRequest(0) }),
      signal: latest.signal,
    });
    found = await response.json();
    attention = Uint8Array.from(atob(found.attention), (character) => character.charCodeAt(0));
    problem.textContent = "";
    show();
  } catch (error) {
    if (error.name !== "AbortError") problem.textContent = readProblem(error);
  }
}

function show() {
  find("found").hidden = false;
  find("cut-note").hidden = !found.is_cut;
  find("cut-note").textContent = `Only the first ${countOf(found.tokens.length, "token")} of the prompt are shown.`;
  chosen = found.tokens.length - 1;
  head = Math.min(head, found.num_heads - 1);
  const before = Math.min(Number(layer.value), found.num_layers - 1);
  const layers = Array.from({ length: found.num_layers }, (_, index) => new Option(index + 1, index));
  layer.replaceChildren(...layers);
  layer.value = Math.max(0, before);
  chips.replaceChildren(
    ...found.tokens.map(([id, bytes], index) =>
      element(
        "button",
        { type: "button", className: "chip", tabIndex: index === chosen ? 0 : -1, dataset: { index, hue: index % NUM_HUES } },
        element("span", { className: "mono" }, visibleBytes(bytes)),
        element("span", { className: "chip-id mono" }, String(id)),
      ),
    ),
  );
  chips.lastElementChild.ariaCurrent = "true";
  showHeads();
  showLens();
  showSampling();
  showChosen();
}

/** The parts that depend on the selected token. */
function showChosen() {
  const near = found.neighbours;
  find("neighbours-title").textContent = `Nearest embeddings of ${nameOf(chosen)} by cosine similarity`;
  neighbours.replaceChildren(
    ...near.tokens[chosen].map(([, bytes], index) => buildBar(visibleBytes(bytes), near.values[chosen][index].toFixed(2), near.values[chosen][index])),
  );
  const row = rowOf(Number(layer.value), head, chosen);
  const order = row.map((_, key) => key).sort((a, b) => row[b] - row[a]);
  find("weights-title").textContent = `Layer ${Number(layer.value) + 1}, head ${head + 1}: ${nameOf(chosen)} attends to`;
  weights.replaceChildren(
    ...order.slice(0, 6).map((key) => buildBar(nameOf(key), formatProbability(row[key]), row[key])),
  );
  for (const cell of lens.querySelectorAll("[data-index]")) {
    cell.toggleAttribute("data-chosen", Number(cell.dataset.index) === chosen);
  }
  for (const button of heads.children) button.ariaPressed = String(Number(button.dataset.head) === head);
  for (const mark of heads.querySelectorAll(".head-row")) mark.style.setProperty("--row", String(chosen));
}

function nameOf(index) {
  return visibleBytes(found.tokens[index][1]);
}

/** A query's attention weights on the keys up to it, from 0 to 1. */
function rowOf(ofLayer, ofHead, query) {
  const count = found.tokens.length;
  const start = ((ofLayer * found.num_heads + ofHead) * count + query) * count;
  return [...attention.subarray(start, start + query + 1)].map((weight) => weight / 255);
}

function showHeads() {
  const count = found.tokens.length;
  heads.style.setProperty("--count", String(count));
  heads.replaceChildren(
    ...Array.from({ length: found.num_layers && found.num_heads }, (_, ofHead) => {
      const canvas = element("canvas", { width: count * CELL_PIXELS, height: count * CELL_PIXELS });
      drawHead(canvas, ofHead);
      const row = element("span", { className: "head-row" });
      const picture = element("span", { className: "head-picture", ariaHidden: "true" }, canvas, row);
      return element("button", { type: "button", className: "head", dataset: { head: ofHead } }, picture, `Head ${ofHead + 1}`);
    }),
  );
}

function drawHead(canvas, ofHead) {
  const context = canvas.getContext("2d");
  context.fillStyle = themeColor("accent");
  for (let query = 0; query < found.tokens.length; query += 1) {
    rowOf(Number(layer.value), ofHead, query).forEach((weight, key) => {
      context.globalAlpha = weight;
      context.fillRect(key * CELL_PIXELS, query * CELL_PIXELS, CELL_PIXELS, CELL_PIXELS);
    });
  }
}

/** The most likely next token at each position, one row per layer, the last layer first. */
function showLens() {
  const { tokens, values } = found.predicted;
  const head = found.tokens.map(([, bytes], index) =>
    element("th", { scope: "col", className: "mono", dataset: { index } }, visibleBytes(bytes)),
  );
  const rows = tokens.map((places, depth) => {
    const cells = places.map((best, index) => {
      const others = best.map(([, bytes], rank) => `${visibleBytes(bytes)} ${formatProbability(values[depth][index][rank])}`);
      const level = levelOf(values[depth][index][0]);
      return element("td", { className: "mono", title: others.join("\n"), dataset: { index, level } }, visibleBytes(best[0][1]));
    });
    const name = depth === 0 ? "Embedding" : `Layer ${depth}`;
    return element("tr", {}, element("th", { scope: "row" }, name), ...cells);
  });
  lens.replaceChildren(element("tr", {}, element("th", { scope: "col" }, "After"), ...head), ...rows.reverse());
}

function showSampling() {
  const { candidates, stages, number, sampled } = found.sampling;
  const rules = Object.keys(stages);
  const titles = ["Token", "Id", ...rules.map((rule) => RULES[rule])];
  const rows = candidates.map(([id, bytes], index) => {
    const steps = rules.map((rule) => stages[rule][index]);
    const cells = steps.map((value) => element("td", { className: "mono" }, value === 0 ? "–" : formatProbability(value)));
    const row = element("tr", {}, element("td", { className: "mono" }, visibleBytes(bytes)), element("td", { className: "mono" }, String(id)), ...cells);
    if (id === sampled) row.ariaCurrent = "true";
    return row;
  });
  find("sampling").replaceChildren(
    element("tr", {}, ...titles.map((title) => element("th", { scope: "col" }, title))),
    ...rows,
  );
  const token = visibleBytes(candidates.find(([id]) => id === sampled)[1]);
  find("sampling-note").textContent =
    number === null
      ? `At temperature 0, the most likely token is chosen: ${token}.`
      : `Each rule in turn changes the probabilities of the most likely tokens (–: removed). Stacked in the order of ids, the probabilities fill 0 to 1; the random number ${number.toFixed(4)} of this seed, or the first later one whose token is not removed, selects ${token}.`;
}

// The URL contains the prompt and the settings, so that links reproduce the view.
function restore() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  prompt.value = parameters.get("prompt") ?? EXAMPLE;
  settings.readFrom(parameters);
  look();
}

form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(() => {
    const parameters = new URLSearchParams({ prompt: prompt.value.slice(0, 4000) });
    settings.writeTo(parameters);
    history.replaceState(null, "", `#${parameters}`);
    look();
  }, PAUSE_MILLISECONDS);
});
layer.addEventListener("change", () => {
  showHeads();
  showChosen();
});
heads.addEventListener("click", ({ target }) => {
  const button = target.closest("button");
  if (button === null) return;
  head = Number(button.dataset.head);
  showChosen();
});
lens.addEventListener("click", ({ target }) => {
  const cell = target.closest("[data-index]");
  if (cell !== null) chips.children[Number(cell.dataset.index)].focus();
});
moveByArrows(chips, ({ dataset: { index } }) => {
  chosen = Number(index);
  showChosen();
});
fillLegend(find("legend"));
onThemeChange(() => found && (showHeads(), showChosen()));

offerModels(find("model-note"), (chosenModel) => {
  model = chosenModel.id;
  settings.setInitial(chosenModel.generation);
  restore();
}).catch((error) => (problem.textContent = readProblem(error)));
addEventListener("hashchange", restore);
