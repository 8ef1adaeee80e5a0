// The panel beside the tokens: one token, its probability, and the alternatives it beat.

import { element, formatProbability } from "./shell.js";
import { spokenText, visibleText } from "./token_text.js";

/** From "nearly sure" (4) down to "a surprise" (0): the steps of the colour scale. */
export const LEVELS = [
  { from: 0.9, level: 4, label: "90% and more" },
  { from: 0.5, level: 3, label: "50–90%" },
  { from: 0.2, level: 2, label: "20–50%" },
  { from: 0.05, level: 1, label: "5–20%" },
  { from: 0, level: 0, label: "under 5%" },
];

export function levelOf(probability) {
  return LEVELS.find(({ from }) => probability >= from)?.level ?? 0;
}

/** The scale in words, each step as it looks on a token. */
export function fillLegend(legend) {
  legend.replaceChildren(
    ...LEVELS.map(({ level, label }) =>
      element("span", { className: "token legend-step", dataset: { level } }, label),
    ),
  );
}

/** Shows a token of the list, or how to choose one when there is none. */
export function fillInspector(panel, token, index, count) {
  panel.toggleAttribute("data-filled", token !== null);
  if (token === null) {
    panel.replaceChildren(
      element("h3", {}, "Look at a token"),
      element(
        "p",
        { className: "inspector-hint" },
        "Point at a token, tap it, or move with the arrow keys to see what else could have come.",
      ),
    );
    return;
  }
  panel.replaceChildren(
    element("h3", {}, `Token ${index + 1} of ${count}`),
    element(
      "div",
      { className: "inspector-summary" },
      element("p", { className: "inspector-token mono" }, visibleText(token.text)),
      element(
        "p",
        { className: "inspector-probability" },
        element("strong", {}, formatProbability(token.probability)),
        token.id === null ? null : element("span", {}, ` id ${token.id}`),
      ),
    ),
    element("ol", { className: "alternatives" }, ...token.alternatives.map(buildAlternative)),
    element(
      "p",
      { className: "field-hint" },
      "The model's own probabilities, before temperature and the other settings.",
    ),
  );
}

function buildAlternative(alternative) {
  const bar = element("span", { className: "bar", ariaHidden: "true" });
  bar.style.setProperty("--fraction", String(Math.min(1, alternative.probability)));
  const { text, isChosen } = alternative;
  const probability = formatProbability(alternative.probability);
  return element(
    "li",
    { className: "alternative", dataset: { chosen: isChosen } },
    element("span", { className: "alternative-text mono", ariaHidden: "true" }, visibleText(text)),
    element("span", { className: "visually-hidden" }, `${spokenText(text)}, `),
    isChosen ? element("span", { className: "badge accent" }, "chosen") : null,
    bar,
    element("span", { className: "alternative-probability" }, probability),
  );
}
