// Metrics as a reader wants them: few digits, a unit, and a dash for what is not known.

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

/** 1638400 -> "1.64M": three digits and a unit. */
export function formatShort(value) {
  if (!isNumber(value)) return UNKNOWN;
  for (const [size, unit] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return `${(value / size).toPrecision(3)}${unit}`;
  }
  return Number.isInteger(value) ? String(value) : value.toPrecision(3);
}

export function formatPercent(fraction) {
  return isNumber(fraction) ? `${(fraction * 100).toFixed(1)}%` : UNKNOWN;
}

export function formatBytes(value) {
  if (!isNumber(value)) return UNKNOWN;
  for (const [size, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (value >= size) return `${(value / size).toPrecision(3)} ${unit}`;
  }
  return `${value} B`;
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

/** How long ago, by the server's clock: "4 s ago", "3 h ago". */
export function formatAgo(seconds) {
  if (!isNumber(seconds)) return UNKNOWN;
  const past = Math.max(0, seconds);
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (past >= size) return `${Math.floor(past / size)} ${unit} ago`;
  }
  return past < 3 ? "just now" : `${Math.floor(past)} s ago`;
}

/** A text that says how long ago a moment was, and can be kept current by `refreshAgo`. */
export function agoText(moment, store) {
  const text = element("span", { dataset: { moment: String(moment) } });
  text.textContent = formatAgo(store.secondsSince(moment));
  return text;
}

export function refreshAgo(root, store) {
  for (const text of root.querySelectorAll("[data-moment]")) {
    const words = formatAgo(store.secondsSince(Number(text.dataset.moment)));
    if (text.textContent !== words) text.textContent = words;
  }
}

export function formatStep(step) {
  return isNumber(step) ? formatCount(step) : UNKNOWN;
}

/** The status of a run as a coloured word. */
export function statusBadge(status) {
  return element("span", { className: "status", dataset: { status } }, status);
}

/** The colour of a run as a small square; the name stands beside it, so it says nothing itself. */
export function swatch(slot) {
  return element("span", { className: "swatch", dataset: { slot: String(slot) }, ariaHidden: "true" });
}
