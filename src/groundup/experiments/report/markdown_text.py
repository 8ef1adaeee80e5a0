"""Foreign text in Markdown: plain words, tables, and blocks that keep every line as it is."""

import re
from collections.abc import Sequence

from groundup.experiments.report.figure_text import UNKNOWN, visible

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&$])")


def plain(text: str) -> str:
    """Text in which nothing is markup, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(visible(text).split()))


def cell(text: str) -> str:
    """The same for a table, where nothing would be a gap."""
    return plain(text) or UNKNOWN


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells; the first column is left-aligned, the others right."""
    lines = [headers, ["---", *["---:"] * (len(headers) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def fenced(text: str) -> str:
    """A block of text as it stands, in a fence longer than any inside it."""
    text = visible(text)
    longest = max((len(ticks) for ticks in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"
