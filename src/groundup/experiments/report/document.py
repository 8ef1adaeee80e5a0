"""A page as a value: title, outcome, and sections of tables, charts and texts.

Every report fills one; `html_page` and `markdown_page` show it. All texts here are plain.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from groundup.experiments.report.charts import Chart


@dataclass(frozen=True)
class Mark:
    """A sign and words beside a row; the kind chooses a color."""

    sign: str
    text: str
    kind: str = ""


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str
    note: str = ""
    """Small words below; in Markdown they follow in brackets."""
    marks: tuple[Mark, ...] = ()
    is_strong: bool = False
    is_code: bool = False
    style: int | None = None
    """The line of the charts that the row belongs to."""


Row = Mapping[str, Cell | str]
"""Cells by the headers of their columns."""


@dataclass(frozen=True)
class Table:
    """Rows of cells; the first cell names its row."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[Cell | str, ...], ...]
    kind: str = ""

    @classmethod
    def of(cls, title: str, rows: Sequence[Row], kind: str = "") -> "Table":
        """A table of rows by their headers, which all rows share."""
        headers = tuple(rows[0]) if rows else ()
        return cls(title, headers, tuple(tuple(row.values()) for row in rows), kind)


@dataclass(frozen=True)
class Figure:
    """A chart, or several side by side."""

    name: str
    """Of the picture's file, without its ending."""
    charts: tuple[Chart, ...]
    title: str = ""
    axis: str = ""
    """Which choice of the x axis shows it; always shown if empty."""


@dataclass(frozen=True)
class Text:
    """A paragraph; muted where it explains others."""

    text: str
    is_muted: bool = True


@dataclass(frozen=True)
class Pairs:
    """Names with their values."""

    values: Mapping[str, str]


@dataclass(frozen=True)
class Specimen:
    """Texts that a model generated, each after its prompt."""

    title: str
    note: str
    texts: tuple[tuple[str, str], ...]
    earlier: tuple["Specimen", ...] = ()


@dataclass(frozen=True)
class Specimens:
    """Several of them side by side."""

    specimens: tuple[Specimen, ...]


@dataclass(frozen=True)
class Folded:
    """Blocks that a reader opens when they want them."""

    title: str
    blocks: tuple["Block", ...]
    is_page_only: bool = False
    """Left out of Markdown."""


Block = Table | Figure | Text | Pairs | Specimens | Folded


@dataclass(frozen=True)
class Section:
    """A title and what stands below it."""

    name: str
    """The anchor."""
    title: str
    blocks: tuple[Block, ...]
    choices: Mapping[str, str] | None = None
    """The x axes that its figures can be shown along."""


@dataclass(frozen=True)
class Verdict:
    """A sentence, and the number that it is about."""

    text: str
    label: str = ""
    number: str = ""
    number_name: str = ""


@dataclass(frozen=True)
class Document:
    """A whole page."""

    kind: str
    command: str
    title: str
    why: str
    facts: Mapping[str, str]
    summary: str
    """The facts in a line, for Markdown."""
    verdicts: tuple[Verdict, ...]
    finding: str
    """What a person makes of it, in their own words."""
    warnings: tuple[str, ...]
    sections: tuple[Section, ...]
