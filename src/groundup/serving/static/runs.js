// The runs page: selected runs, open view, and polling for updates.

import { countOf, onThemeChange, readProblem, themeColor } from "./shell.js";
import { RunList } from "./run_list.js";
import { RunPlots, loadPlotly } from "./run_plots.js";
import { RunSamples } from "./run_samples.js";
import { RunTable } from "./run_table.js";
import { MAX_CHOSEN, RunStore } from "./run_store.js";

const TABS = ["curves", "table", "samples"];
const X_AXES = ["step", "tokens", "wall_seconds"];
// Polling intervals: while a run is training, otherwise, and after an error.
const RUNNING_MILLISECONDS = 1500;
const IDLE_MILLISECONDS = 3000;
const ERROR_MILLISECONDS = 8000;

const part = (id) => document.getElementById(id);
const controls = part("controls");

const store = new RunStore();
const view = readAddress();
const list = new RunList(store, { onToggle: toggle, onOnly: (name) => choose([name]) });
const plots = new RunPlots(part("plots"));
const samples = new RunSamples(part("panel-samples"));
const table = new RunTable(part("panel-table"));

let isFirstLook = true;
let notice = "";
let timer = 0;
let turn = 0;

function toggle(name, isChosen) {
  const others = view.chosen.filter((other) => other !== name);
  choose(isChosen ? [...others, name].slice(-MAX_CHOSEN) : others);
}

function choose(names) {
  view.chosen = names;
  notice = "";
  writeAddress();
  render();
  look();
}

/** Fetches and shows updates, and schedules the next call. */
async function look() {
  clearTimeout(timer);
  turn += 1;
  const mine = turn;
  let pause = IDLE_MILLISECONDS;
  try {
    await store.refreshList();
    dropVanished();
    chooseFirst();
    render();
    const answers = await Promise.allSettled(view.chosen.map((name) => store.refreshRun(name)));
    // Ignore a run deleted since the list was fetched; the next list omits it.
    const failure = answers.find(({ reason }) => reason !== undefined && reason.status !== 404);
    if (failure) throw failure.reason;
    showProblem(notice);
    if (store.runs.some((run) => run.status === "running")) pause = RUNNING_MILLISECONDS;
  } catch (error) {
    showProblem(readProblem(error));
    pause = ERROR_MILLISECONDS;
  }
  if (mine !== turn) return;
  render();
  if (!document.hidden) timer = setTimeout(look, pause);
}

function dropVanished() {
  const gone = view.chosen.filter((name) => store.run(name) === undefined);
  if (gone.length === 0) return;
  view.chosen = view.chosen.filter((name) => !gone.includes(name));
  if (!isFirstLook) notice = `${gone.join(", ")}: the run folder no longer exists.`;
  writeAddress();
}

/** Selects a run on a fresh page: the served one, else the running or most recently updated one. */
function chooseFirst() {
  if (view.chosen.length === 0 && store.runs.length > 0 && isFirstLook) {
    const running = store.runs.filter((run) => run.status === "running");
    const candidates = running.length > 0 ? running : store.runs;
    const last = candidates.reduce((one, other) => (other.updated > one.updated ? other : one));
    view.chosen = [(store.run(store.served) ?? last).name];
  }
  isFirstLook = isFirstLook && store.runs.length === 0;
}

function render() {
  const hasRuns = store.runs.length > 0;
  part("no-runs").hidden = hasRuns || store.clockOffset === null;
  part("no-runs-folder").textContent = store.folder;
  part("runs-layout").hidden = !hasRuns;
  if (hasRuns) renderRuns();
  setNote();
}

function renderRuns() {
  list.render(view.chosen);
  const chosen = view.chosen
    .filter((name) => store.run(name) !== undefined)
    .map((name) => ({
      run: store.run(name),
      slot: store.slot(name, view.chosen),
      lines: store.lines(name) ?? [],
      details: store.details.get(name),
      age: store.secondsSince(store.run(name).updated),
    }));
  for (const tab of TABS) part(`panel-${tab}`).hidden = tab !== view.tab;
  if (view.tab === "curves") renderCurves(chosen);
  if (view.tab === "samples") samples.render(chosen);
  if (view.tab === "table") table.render(chosen);
}

let drawn = "";

function renderCurves(chosen) {
  const curves = chosen.map(({ run, slot, lines }) => ({
    ...{ name: run.name, slot, lines },
    isRead: store.lines(run.name) !== undefined,
  }));
  const known = curves.map(({ name, slot }) => {
    const { next, version } = store.curves.get(name) ?? {};
    return [name, slot, next, version];
  });
  const state = JSON.stringify([view, themeColor("text"), known]);
  if (state === drawn) return;
  drawn = state;
  plots.render(curves, view);
}

function setNote() {
  if (store.clockOffset === null) return;
  const running = store.runs.filter((run) => run.status === "running").length;
  const words = `${countOf(store.runs.length, "run")}${running > 0 ? `, ${running} training now` : ""}`;
  if (part("page-note").textContent !== words) part("page-note").textContent = words;
}

function showProblem(text) {
  if (part("problem").textContent !== text) part("problem").textContent = text;
  part("problem").hidden = text === "";
}

function readControls() {
  const data = new FormData(controls);
  view.tab = data.get("tab");
  view.x = data.get("x");
  view.log = data.get("log") !== null;
  view.smoothing = Number(data.get("smoothing"));
  showControls();
  writeAddress();
  render();
}

function showControls() {
  controls.elements.tab.value = view.tab;
  controls.elements.x.value = view.x;
  controls.elements.log.checked = view.log;
  controls.elements.smoothing.value = String(view.smoothing);
  part("curve-options").hidden = view.tab !== "curves";
}

/** The URL contains the view, so that it can be bookmarked. */
function readAddress() {
  const query = new URLSearchParams(location.search);
  const smoothing = Number(query.get("smoothing"));
  return {
    chosen: [...new Set(query.getAll("run"))].slice(0, MAX_CHOSEN),
    tab: TABS.includes(query.get("tab")) ? query.get("tab") : "curves",
    x: X_AXES.includes(query.get("x")) ? query.get("x") : "step",
    log: query.get("log") === "1",
    smoothing: smoothing > 0 && smoothing <= 0.98 ? smoothing : 0,
  };
}

function writeAddress() {
  const query = new URLSearchParams(view.chosen.map((name) => ["run", name]));
  if (view.tab !== "curves") query.set("tab", view.tab);
  if (view.x !== "step") query.set("x", view.x);
  if (view.log) query.set("log", "1");
  if (view.smoothing > 0) query.set("smoothing", String(view.smoothing));
  history.replaceState(null, "", query.size > 0 ? `?${query}` : location.pathname);
}

controls.addEventListener("input", readControls);
controls.addEventListener("submit", (event) => event.preventDefault());
onThemeChange(() => render());
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) look();
});

showControls();
loadPlotly().catch((error) => showProblem(readProblem(error)));
look();
