// One pre-token in full: its tokens with ids and bytes, and each merge from bytes to tokens.

import { element } from "./shell.js";
import { hexBytes, visibleBytes, visibleText } from "./token_text.js";

/** The pre-token's position, tokens and merge steps in order; `chosen` is the index of one token. */
export function buildPreTokenDetail(preToken, chosen) {
  return element(
    "div",
    { className: "detail" },
    element("p", { className: "detail-text mono" }, visibleText(preToken.text)),
    element("p", { className: "page-note" }, describePosition(preToken)),
    buildTokenTable(preToken.tokens, chosen),
    element("h3", {}, "From bytes to tokens"),
    buildSteps(preToken),
  );
}

function describePosition({ start, end, is_special: isSpecial }) {
  const kind = isSpecial ? "Special token" : "Pre-token";
  const position = end - start === 1 ? `character ${start + 1}` : `characters ${start + 1} to ${end}`;
  return `${kind}, ${position} of the text`;
}

function buildTokenTable(tokens, chosen) {
  const cell = (name, text) => element("td", { className: name }, text);
  const rows = tokens.map((token, index) =>
    element(
      "tr",
      index === chosen ? { ariaCurrent: "true" } : {},
      cell("mono", visibleBytes(token.bytes)),
      cell("mono", String(token.id)),
      cell("mono", hexBytes(token.bytes)),
    ),
  );
  const heads = ["Token", "Id", "Bytes"].map((name) => element("th", { scope: "col" }, name));
  return element(
    "table",
    { className: "token-table" },
    element("thead", {}, element("tr", {}, ...heads)),
    element("tbody", {}, ...rows),
  );
}

function buildSteps(preToken) {
  const reason = whyNoSteps(preToken);
  if (reason !== null) return element("p", { className: "page-note" }, reason);
  let symbols = preToken.tokens.flatMap((token) => token.bytes).map((byte) => [byte]);
  const start = buildStep("bytes", null, symbols, -1);
  const steps = preToken.merges.map((merge) => {
    const before = symbols;
    symbols = merge.symbols;
    const merged = symbols.findIndex((symbol, index) => symbol.length !== before[index].length);
    const pair = `${visibleBytes(merge.left)} + ${visibleBytes(merge.right)}`;
    return buildStep(`merge ${merge.rank + 1}`, pair, symbols, merged);
  });
  return element("ol", { className: "merge-steps" }, start, ...steps);
}

function whyNoSteps(preToken) {
  if (preToken.is_special) return "A special token is kept whole: nothing is merged.";
  if (preToken.is_too_long) return "This pre-token is too long for its steps to be shown.";
  if (preToken.is_whole_word) return "The pre-token is in the vocabulary: no merge is needed.";
  if (preToken.merges.length === 0) return "No merge applies: each byte is a token of its own.";
  return null;
}

function buildStep(name, pair, symbols, merged) {
  return element(
    "li",
    { className: "merge-step" },
    element(
      "span",
      { className: "merge-name" },
      name,
      pair === null ? null : element("span", { className: "mono merge-pair" }, pair),
    ),
    element(
      "span",
      { className: "symbols mono" },
      ...symbols.map((symbol, index) => {
        const tag = index === merged ? "mark" : "span";
        return element(tag, { className: "symbol" }, visibleBytes(symbol));
      }),
    ),
  );
}
