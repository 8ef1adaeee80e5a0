// The plots: a large one for the losses, small ones for speed, MFU, gradient norm and learning rate,
// and one per evaluation task. Above each, a text with the last and best values is also the legend.

import { element } from "./shell.js";
import { layoutOf, scaleOf, tracesOf } from "./run_curves.js";
import { formatNumber, formatPercent, formatShort, formatStep, isNumber, swatch } from "./run_format.js";

const PLOTS = [
  { id: "loss", title: "Loss", metric: "loss", extra: "validation_loss", format: formatNumber, best: "least", isLarge: true, hasLog: true },
  { id: "speed", title: "Tokens per second", metric: "tokens_per_second", format: formatShort, best: "most" },
  { id: "mfu", title: "MFU", metric: "mfu", format: formatPercent, best: "most", tickformat: ".0%" },
  { id: "gradient", title: "Gradient norm", metric: "gradient_norm", format: formatNumber, hasLog: true },
  { id: "rate", title: "Learning rate", metric: "learning_rate", format: formatNumber, tickformat: ".2~g" },
];
const TASK = "task/";
const CONFIG = { displayModeBar: false, showTips: false };

// plotly adds inline styles for maps, which the Content-Security-Policy refuses with an error in the
// console. It skips them if the page has an element with this id.
const MAP_STYLE_ID = "9f215cf04c5486422605d13261cb87401f4e7763b6296af81e98efbc0130da53";

let plotly = null;

/** Loads plotly in the background: it is large, and the page works without it. */
export function loadPlotly() {
  plotly ??= new Promise((resolve, reject) => {
    const script = element("script", { src: "/static/plotly.min.js", async: true });
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", () => reject(new Error("plotly.min.js did not load")));
    document.head.append(element("meta", { id: MAP_STYLE_ID }), script);
  });
  return plotly;
}

export class RunPlots {
  constructor(root) {
    this.root = root;
    this.cards = PLOTS.map((plot) => makeCard(plot));
    root.append(...this.cards.map((card) => card.root));
    this.wanted = null;
    this.isDrawing = false;
  }

  /** curves: [{ name, slot, lines, isRead }]; view: { x, log, smoothing }. */
  render(curves, view) {
    this.#addTasks(curves);
    for (const card of this.cards) renderSummary(card, curves);
    this.wanted = { curves, view: { ...view } };
    if (!this.isDrawing) this.#drawAll();
  }

  #addTasks(curves) {
    const metrics = new Set(curves.flatMap(({ lines }) => lines.flatMap((line) => Object.keys(line))));
    const known = new Set(this.cards.map(({ plot }) => plot.metric));
    for (const metric of metrics) {
      if (!metric.startsWith(TASK) || known.has(metric)) continue;
      const card = makeCard({
        id: `task-${this.cards.length}`,
        title: metric.slice(TASK.length),
        metric,
        format: formatPercent,
        best: "most",
        tickformat: ".0%",
      });
      this.cards.push(card);
      this.root.append(card.root);
    }
  }

  /** Draws one plot at a time; of the requests that arrive meanwhile, only the newest is drawn. */
  async #drawAll() {
    this.isDrawing = true;
    try {
      const Plotly = await loadPlotly();
      while (this.wanted !== null) {
        const { curves, view } = this.wanted;
        this.wanted = null;
        await this.#draw(Plotly, curves, view);
      }
    } finally {
      this.isDrawing = false;
    }
  }

  async #draw(Plotly, curves, view) {
    const scale = scaleOf(curves, view.x);
    for (const card of this.cards) {
      if (card.root.hidden) continue;
      const traces = curves.flatMap((curve) => tracesOf(card.plot, curve, view, scale));
      const revision = `${view.x} ${scale.title} ${view.log}`;
      await Plotly.react(card.area, traces, layoutOf(card.plot, view, scale, revision), CONFIG);
      if (!card.isWatched) this.#watch(Plotly, card);
    }
  }

  #watch(Plotly, card) {
    card.isWatched = true;
    // The window may be resized while another tab hides the plot.
    let width = card.area.offsetWidth;
    new ResizeObserver(() => {
      const now = card.area.offsetWidth;
      if (now > 0 && now !== width) Plotly.Plots.resize(card.area);
      if (now > 0) width = now;
    }).observe(card.area);
  }
}

function makeCard(plot) {
  const titleId = `plot-${plot.id}-title`;
  const summary = element("ul", { className: "plot-summary", id: `plot-${plot.id}-summary` });
  const area = element("div", { className: "plot-area", id: `plot-${plot.id}` });
  area.setAttribute("role", "img");
  area.setAttribute("aria-labelledby", titleId);
  area.setAttribute("aria-describedby", summary.id);
  const head = element("h2", { id: titleId }, plot.title);
  const className = plot.isLarge ? "card plot-card large" : "card plot-card";
  return {
    plot,
    summary,
    area,
    root: element("section", { className }, head, summary, area),
    isWatched: false,
  };
}

function renderSummary(card, curves) {
  const items = curves.map((curve) => ({ curve, parts: partsOf(curve, card.plot) }));
  card.root.hidden = !card.plot.isLarge && items.every((item) => item.parts.length === 0);
  const state = JSON.stringify(items.map(({ curve, parts }) => [curve.name, curve.slot, curve.isRead, parts]));
  if (card.shown === state) return;
  card.shown = state;
  card.summary.replaceChildren(...items.map(({ curve, parts }) => showItem(curve, parts)));
}

function showItem(curve, parts) {
  const none = curve.isRead ? "no metrics yet" : "reading …";
  return element(
    "li",
    { dataset: { slot: String(curve.slot) } },
    swatch(curve.slot),
    element("span", { className: "plot-run" }, curve.name),
    ...parts.map(showPart),
    parts.length === 0 && element("span", { className: "plot-value" }, none),
  );
}

function showPart({ key, last, best, isDotted }) {
  return element(
    "span",
    { className: "plot-value" },
    key && element("span", { className: isDotted ? "plot-key dotted" : "plot-key" }, `${key} `),
    element("strong", {}, last),
    best && element("span", { className: "plot-best" }, ` ${best}`),
  );
}

function partsOf(curve, plot) {
  const main = wordsFor(curve.lines, plot.metric, plot);
  const extra = plot.extra ? wordsFor(curve.lines, plot.extra, plot) : null;
  return [
    main && { ...main, key: plot.extra ? "training" : null, isDotted: false },
    extra && { ...extra, key: "validation", isDotted: true },
  ].filter((part) => part !== null);
}

function wordsFor(lines, metric, plot) {
  let last = null;
  let best = null;
  for (const line of lines) {
    if (!isNumber(line[metric])) continue;
    last = line;
    const isBetter = plot.best === "most" ? line[metric] > best?.[metric] : line[metric] < best?.[metric];
    if (best === null || isBetter) best = line;
  }
  if (last === null) return null;
  const word = plot.best === "most" ? "max" : "best";
  const bestWords = `${word} ${plot.format(best[metric])} at ${formatStep(best.step)}`;
  return { last: plot.format(last[metric]), best: plot.best && best !== last ? bestWords : null };
}
