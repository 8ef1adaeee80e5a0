"""Figures and foreign text as a reader meets them: short numbers, times, no control signs."""

import unicodedata
from collections.abc import Sequence
from html import escape

from groundup.experiments.results.statistics import Interval

UNKNOWN = "—"

# Signs that turn the direction of all text after them.
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_NO_CHARACTERS = frozenset("\ufffe\uffff")


def show_count(number: float | None) -> str:
    """Three digits and a letter: 950, 12.3k, 4.51M, 1.64B."""
    if number is None:
        return UNKNOWN
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e4)):
        if number >= size:
            return f"{number / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{number:,.0f}"


def show_flops(number: float | None) -> str:
    """Floating-point operations with the field's prefixes."""
    if number is None:
        return UNKNOWN
    units = (("Z", 1e21), ("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6))
    for unit, size in units:
        if number >= size:
            return f"{number / size:.3g} {unit}FLOP"
    return f"{number:,.0f} FLOP"


def show_bytes(number: float | None) -> str:
    if number is None:
        return UNKNOWN
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:,.0f} B"


def show_duration(seconds: float | None) -> str:
    """A time in two units at most."""
    if seconds is None:
        return UNKNOWN
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02} min"
    return f"{hours // 24} d {hours % 24:02} h"


def show_percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.3g}%"


def show_loss(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.4f}" if abs(value) < 100 else f"{value:.4g}"


def show_interval(interval: Interval | None) -> str:
    """mean ± half width, or the one value there is."""
    if interval is None:
        return UNKNOWN
    if interval.half_width is None:
        return show_loss(interval.mean)
    return f"{show_loss(interval.mean)} ± {show_loss(interval.half_width)}"


def shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def shorten_alike(texts: Sequence[str], length: int) -> list[str]:
    """Texts that do not fit, without the words that all of them have: what tells them apart stays.

    "clipped, learning rate 0.1" beside "free, learning rate 0.2" becomes "clipped, 0.1".
    """
    parts = [text.split(", ") for text in texts]
    if all(len(text) <= length for text in texts) or len({len(one) for one in parts}) > 1:
        return [shorten(text, length) for text in texts]
    columns = [_without_common_words(column) for column in zip(*parts, strict=True)]
    told = [", ".join(filter(None, row)) for row in zip(*columns, strict=True)]
    are_distinct = len(set(told)) == len(set(texts)) and all(told)
    return [shorten(text, length) for text in (told if are_distinct else texts)]


def _without_common_words(texts: Sequence[str]) -> list[str]:
    """Nothing where all texts are alike, else what follows the words they begin with."""
    words = [text.split(" ") for text in texts]
    if len(set(texts)) == 1:
        return [""] * len(texts)
    count = 0
    while all(len(one) > count + 1 for one in words) and len({one[count] for one in words}) == 1:
        count += 1
    return [" ".join(one[count:]) for one in words]


def visible(text: str) -> str:
    """Text that any page or drawing may hold; what has no shape becomes the replacement sign."""
    return "".join("\ufffd" if _is_shapeless(sign) else sign for sign in text.replace("\r\n", "\n"))


def markup(text: object) -> str:
    """Foreign text where HTML or SVG expects some: nothing in it is a tag."""
    return escape(visible(str(text)))


def breakable(text: object) -> str:
    """The same for names of runs and paths, whose parts are better lines than any other place."""
    return markup(text).replace("+", "+<wbr>").replace("/", "/<wbr>")


def _is_shapeless(sign: str) -> bool:
    if sign in "\n\t":
        return False
    is_control = unicodedata.category(sign) in ("Cc", "Cs")
    return is_control or sign in _TURNING or sign in _NO_CHARACTERS
