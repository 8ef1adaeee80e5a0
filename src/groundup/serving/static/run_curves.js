// Converts lines of metrics.jsonl to plotly traces and layouts in the colors of the theme.

import { themeColor } from "./shell.js";
import { isNumber } from "./run_format.js";

const DENSE = 800;

/** Unit and title of the horizontal axis; time is in the unit that suits the longest run. */
export function scaleOf(curves, x) {
  if (x === "step") return { divisor: 1, title: "step", hover: "step %{x:,}" };
  if (x === "tokens") return { divisor: 1, title: "tokens", hover: "%{x:.3s} tokens" };
  const longest = Math.max(0, ...curves.map(({ lines }) => lines.at(-1)?.wall_seconds ?? 0));
  let [divisor, title] = [1, "seconds"];
  if (longest > 120) [divisor, title] = [60, "minutes"];
  if (longest > 7200) [divisor, title] = [3600, "hours"];
  return { divisor, title, hover: `%{x:.2f} ${title}` };
}

/** The traces of one run in one plot. */
export function tracesOf(plot, curve, view, scale) {
  const color = themeColor(`series-${curve.slot}`);
  const main = seriesOf(curve.lines, plot.metric, view.x, scale);
  const isSmooth = view.smoothing > 0 && main.x.length > 2;
  const y = isSmooth ? smooth(main.y, view.smoothing) : main.y;
  const base = { type: "scatter", name: curve.name, hovertemplate: "%{text}<extra></extra>" };
  const traces = [];
  if (isSmooth) {
    const asMeasured = { type: "scatter", mode: "lines", hoverinfo: "skip", opacity: 0.25 };
    traces.push({ ...asMeasured, x: main.x, y: main.y, line: { color, width: 1 } });
  }
  traces.push({
    ...base,
    x: main.x,
    y,
    mode: main.x.length === 1 ? "markers" : "lines",
    text: hoverTexts(plot.extra ? `${curve.name} training` : curve.name, y, plot),
    line: { color, width: main.x.length > DENSE ? 1.25 : 2 },
    marker: { color, size: 6 },
  });
  if (plot.extra) {
    const extra = seriesOf(curve.lines, plot.extra, view.x, scale);
    traces.push({
      ...base,
      x: extra.x,
      y: extra.y,
      mode: extra.x.length > 60 ? "lines" : "lines+markers",
      text: hoverTexts(`${curve.name} validation`, extra.y, plot),
      line: { color, width: 1.5, dash: "dot" },
      marker: { color: themeColor("surface"), size: 7, line: { color, width: 2 } },
    });
    traces.push({ ...base, ...eventsOf(plot, curve, view, scale) });
  }
  return traces;
}

export function layoutOf(plot, view, scale, revision) {
  const [muted, line, text, surface] = ["text-muted", "line", "text", "surface"].map(themeColor);
  const isLog = view.log && plot.hasLog;
  const axis = {
    automargin: true,
    exponentformat: "B",
    gridcolor: line,
    linecolor: line,
    separatethousands: true,
    tickfont: { color: muted },
    zeroline: false,
  };
  return {
    autosize: true,
    height: plot.isLarge ? 380 : 210,
    margin: { l: 44, r: 22, t: 8, b: 38 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: muted },
    showlegend: false,
    hovermode: "x unified",
    hoverlabel: { bgcolor: surface, bordercolor: line, font: { color: text, size: 12 }, align: "left" },
    // On touch screens, dragging scrolls the page.
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    xaxis: {
      ...axis,
      rangemode: "tozero",
      showgrid: false,
      tickcolor: line,
      ticks: "outside",
      title: { text: scale.title, font: { color: muted, size: 12 }, standoff: 6 },
      unifiedhovertitle: { text: scale.hover },
    },
    yaxis: {
      ...axis,
      nticks: plot.isLarge ? 8 : 5,
      // Without it, plotly centers a constant value between value - 1 and value + 1.
      rangemode: plot.isLarge ? "normal" : "tozero",
      tickformat: isLog ? "~g" : (plot.tickformat ?? ""),
      type: isLog ? "log" : "linear",
    },
    uirevision: revision,
  };
}

/** Crosses for skipped steps, at the previous loss. */
function eventsOf(plot, curve, view, scale) {
  const marks = { x: [], y: [], text: [] };
  let before = null;
  for (const line of curve.lines) {
    const loss = isNumber(line[plot.metric]) ? line[plot.metric] : before;
    if (line.skipped && loss !== null && isNumber(line[view.x])) {
      marks.x.push(line[view.x] / scale.divisor);
      marks.y.push(loss);
      marks.text.push(`skipped  ${escaped(curve.name)}`);
    }
    before = loss;
  }
  const color = themeColor("danger");
  const marker = { color, symbol: "x-thin-open", size: 10, line: { color, width: 2 } };
  return { mode: "markers", x: marks.x, y: marks.y, text: marks.text, marker };
}

function seriesOf(lines, metric, x, scale) {
  const series = { x: [], y: [] };
  for (const line of lines) {
    if (!isNumber(line[metric]) || !isNumber(line[x])) continue;
    series.x.push(line[x] / scale.divisor);
    series.y.push(line[metric]);
  }
  return series;
}

/** Bias-corrected exponential moving average. */
function smooth(values, weight) {
  let mean = 0;
  let total = 0;
  return values.map((value) => {
    mean = weight * mean + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return mean / total;
  });
}

// Without tags: plotly would style them inline, which the Content-Security-Policy forbids.
function hoverTexts(label, values, plot) {
  const safe = escaped(label);
  return values.map((value) => `${plot.format(value)}  ${safe}`);
}

/** Escapes the markup that plotly supports in texts. */
function escaped(text) {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}
