// Showing tokens: white space made visible for the eye, and put in words for the ear.

const NAMED = { " ": "␣", "\n": "↵", "\t": "⇥" };
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
// How the server spells a token that is not whole characters: bytes:\xf0\x9f
const SPELLED_BYTES = /^bytes:((?:\\x[0-9a-f]{2})+)$/;

/** " it\n" -> "␣it↵": every character can be seen. */
export function visibleText(text) {
  if (text === "") return "∅";
  return [...readable(text)].map((character) => NAMED[character] ?? character).join("");
}

/** " it" -> "space it": for accessible names. */
export function spokenText(text) {
  if (text === "") return "empty";
  const spoken = readable(text)
    .replaceAll("\n", " line break ")
    .replaceAll("\t", " tab ")
    .replace(/^ +/, (spaces) => (spaces.length > 1 ? `${spaces.length} spaces ` : "space "));
  return spoken.trim() || "space";
}

/** In the running text a token keeps its spaces; line breaks show a sign before they break. */
export function flowingText(text) {
  return readable(text).replaceAll("\n", "↵\n");
}

/** [32, 105, 116] -> "␣it"; half a character has no text of its own and is shown as numbers. */
export function visibleBytes(bytes) {
  try {
    return visibleText(decoder.decode(new Uint8Array(bytes)));
  } catch {
    return `⟨${hexBytes(bytes).replaceAll(" ", "·")}⟩`;
  }
}

/** [240, 159] -> "f0 9f" */
export function hexBytes(bytes) {
  return bytes.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

// Control characters become their pictures, which Unicode keeps in the same order.
function readable(text) {
  const bytes = SPELLED_BYTES.exec(text)?.[1];
  if (bytes !== undefined) return `⟨${bytes.slice(2).replaceAll("\\x", "·")}⟩`;
  return text.replace(/[\x00-\x08\x0b-\x1f]/g, (control) =>
    String.fromCodePoint(0x2400 + control.codePointAt(0)),
  );
}
