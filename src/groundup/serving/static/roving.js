// A list of options in which one can be chosen: by pointing, by tapping, or by the arrow keys.
// The list takes one stop of the Tab key; arrows, Home and End move inside it.

/** Options are elements with role="option"; `onShow(option | null)` is told what was chosen,
 *  `onPoint(option | null)` what the mouse points at, or the chosen one again when it leaves. */
export class RovingList {
  #list;
  #onShow;
  #chosen = null;

  constructor(list, { onShow, onPoint = onShow }) {
    this.#list = list;
    this.#onShow = onShow;
    const optionOf = (event) => event.target.closest?.('[role="option"]');
    list.addEventListener("pointerover", (event) => {
      if (event.pointerType === "mouse") onPoint(optionOf(event) ?? this.#chosen);
    });
    list.addEventListener("pointerleave", () => onPoint(this.#chosen));
    list.addEventListener("click", (event) => optionOf(event)?.focus());
    list.addEventListener("focusin", (event) => this.choose(optionOf(event)));
    list.addEventListener("keydown", (event) => this.#onKey(event));
  }

  /** Call after options were added: the first becomes the way in by Tab. */
  refresh() {
    if (this.#chosen?.isConnected) return;
    this.#chosen = null;
    const first = this.#list.querySelector('[role="option"]');
    if (first) first.tabIndex = 0;
  }

  clear() {
    this.#list.replaceChildren();
    this.#chosen = null;
    this.#onShow(null);
  }

  choose(option) {
    if (!option || option === this.#chosen) return;
    const before = this.#chosen ?? this.#list.querySelector('[role="option"][tabindex="0"]');
    if (before) {
      before.tabIndex = -1;
      before.ariaSelected = "false";
    }
    option.tabIndex = 0;
    option.ariaSelected = "true";
    this.#chosen = option;
    this.#onShow(option);
  }

  #onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const options = [...this.#list.querySelectorAll('[role="option"]')];
    const index = options.indexOf(document.activeElement);
    if (index < 0) return;
    const moves = {
      ArrowLeft: () => options[index - 1],
      ArrowRight: () => options[index + 1],
      ArrowUp: () => nearestOnLine(options.slice(0, index).reverse(), options[index], -1),
      ArrowDown: () => nearestOnLine(options.slice(index + 1), options[index], 1),
      Home: () => options[0],
      End: () => options.at(-1),
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    moves[event.key]()?.focus();
  }
}

// Of the next line above or below, the option whose middle lies nearest.
function nearestOnLine(candidates, from, direction) {
  const boxOf = (option) => option.getClientRects()[0] ?? option.getBoundingClientRect();
  const origin = boxOf(from);
  const middle = (box) => box.left + box.width / 2;
  let lineTop = null;
  let best = null;
  for (const option of candidates) {
    const box = boxOf(option);
    if ((box.top - origin.top) * direction < origin.height / 2) continue;
    lineTop ??= box.top;
    if (Math.abs(box.top - lineTop) > origin.height / 2) break;
    const distance = Math.abs(middle(box) - middle(origin));
    if (best === null || distance < best.distance) best = { option, distance };
  }
  return best?.option;
}
