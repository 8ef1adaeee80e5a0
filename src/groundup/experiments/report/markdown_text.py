"""Foreign text in Markdown: plain words, tables, and blocks that keep every line as it is."""

import re
from collections.abc import Sequence

from groundup.experiments.report.figure_text import UNKNOWN, visible

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&$])")


def plain(text: str) -> str:
    """Text in which nothing is markup, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(visible(text).split()))


def paragraph(text: str) -> str:
    """Text whose beginning is no list, heading or rule either."""
    return re.sub(r"^(\d+(?=[.)])|(?=[-+=]))", r"\1\\", plain(text))


def finding_paragraphs(finding: str) -> list[str]:
    """What somebody makes of the figures, marked as theirs; blank lines part paragraphs."""
    first, *others = re.split(r"\n\s*\n", finding.strip())
    if not first:
        return []
    return [f"**What we make of it** (written by hand): {plain(first)}", *map(paragraph, others)]


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
