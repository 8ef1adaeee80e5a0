"""Numbers and foreign text as a reader meets them: short, escaped for HTML or Markdown, and without
control characters."""

import re
import unicodedata
from collections.abc import Callable
from html import escape

from groundup.experiments.results.statistics import Interval

UNKNOWN = "—"

# Characters that change the direction of all text after them.
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_NO_CHARACTERS = frozenset("\ufffe\uffff")
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~&$])")


def shown(show: Callable[[float], str], number: float | None) -> str:
    """A number as it is shown, or a dash where it is not known."""
    return UNKNOWN if number is None else show(number)


def show_count(number: float) -> str:
    """Three digits and a letter: 950, 12.3k, 4.51M, 1.64B."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e4)):
        if number >= size:
            return f"{number / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{number:,.0f}"


def show_flops(number: float) -> str:
    """Floating-point operations with the field's prefixes."""
    units = (("Z", 1e21), ("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6))
    for unit, size in units:
        if number >= size:
            return f"{number / size:.3g} {unit}FLOP"
    return f"{number:,.0f} FLOP"


def show_percent(fraction: float) -> str:
    return f"{100 * fraction:.3g}%"


def show_loss(value: float) -> str:
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


def visible(text: str) -> str:
    """Text that any page or picture may hold; control characters become U+FFFD."""
    return "".join("\ufffd" if _is_shapeless(sign) else sign for sign in text.replace("\r\n", "\n"))


def markup(text: object) -> str:
    """Foreign text for HTML: nothing in it is a tag."""
    return escape(visible(str(text)))


def _is_shapeless(sign: str) -> bool:
    if sign in "\n\t":
        return False
    is_control = unicodedata.category(sign) in ("Cc", "Cs")
    return is_control or sign in _TURNING or sign in _NO_CHARACTERS


def plain(text: str) -> str:
    """Foreign text for Markdown, on one line: nothing in it is markup."""
    return _MARKDOWN.sub(r"\\\1", " ".join(visible(text).split()))


def paragraph(text: str) -> str:
    """The same where a line begins: no list, heading or rule either."""
    return re.sub(r"^(\d+(?=[.)])|(?=[-+=]))", r"\1\\", plain(text))


def fenced(text: str) -> str:
    """A Markdown block of text as it stands, in a fence longer than any inside it."""
    text = visible(text)
    longest = max((len(ticks) for ticks in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def slug(title: str) -> str:
    """A title as a file name."""
    words = re.findall(r"[a-z0-9]+", visible(title).lower())
    return "_".join(words)[:60].strip("_") or "report"
