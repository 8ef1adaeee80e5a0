// Formats metrics with few digits and a unit; unknown values are a dash.

import { element, formatCount } from "./shell.js";

export const UNKNOWN = "–";

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** 0.80835 -> "0.8084", 2.4e-4 -> "2.40e-4", 131.4 -> "131.4". */
export function formatNumber(value) {
  if (!isNumber(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return value.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : 4);
}

function inUnits(value, units) {
  const found = units.find(([size]) => Math.abs(value) >= size);
  return found && `${(value / found[0]).toPrecision(3)}${found[1]}`;
}

/** 1638400 -> "1.64M": three significant digits. */
export function formatShort(value) {
  if (!isNumber(value)) return UNKNOWN;
  return inUnits(value, [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]]) ?? String(Math.round(value));
}

export function formatBytes(value) {
  if (!isNumber(value)) return UNKNOWN;
  return inUnits(value, [[1e12, " TB"], [1e9, " GB"], [1e6, " MB"], [1e3, " kB"]]) ?? `${value} B`;
}

export function formatPercent(fraction) {
  return isNumber(fraction) ? `${(fraction * 100).toFixed(1)}%` : UNKNOWN;
}

/** 155.2 -> "2:35", 7391 -> "2:03:11", 200000 -> "2 d 7 h". */
export function formatDuration(seconds) {
  if (!isNumber(seconds)) return UNKNOWN;
  const whole = Math.max(0, Math.round(seconds));
  const [days, hours] = [Math.floor(whole / 86400), Math.floor(whole / 3600)];
  if (days >= 2) return `${days} d ${hours % 24} h`;
  const two = (number) => String(number).padStart(2, "0");
  const minutes = Math.floor(whole / 60) % 60;
  return hours > 0 ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

/** How long ago: "just now", "4 min ago", "3 h ago". */
export function formatAgo(seconds) {
  if (!isNumber(seconds)) return UNKNOWN;
  const units = [[86400, "d"], [3600, "h"], [60, "min"]];
  const [size, unit] = units.find(([least]) => seconds >= least) ?? [0, ""];
  return size === 0 ? "just now" : `${Math.floor(seconds / size)} ${unit} ago`;
}

export function formatStep(step) {
  return isNumber(step) ? formatCount(step) : UNKNOWN;
}

/** A square in the run's color; hidden from screen readers, because the name is next to it. */
export function swatch(slot) {
  return element("span", { className: "swatch", dataset: { slot: String(slot) }, ariaHidden: "true" });
}
