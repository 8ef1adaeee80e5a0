"""A study as a table: cells are plain text, which a page and Markdown dress each in its own way."""

from dataclasses import dataclass

from groundup.experiments.report.curves_by_setting import SettingChart


@dataclass(frozen=True)
class Mark:
    """A sign and words beside a row; the kind chooses a colour."""

    sign: str
    text: str
    kind: str = ""


@dataclass(frozen=True)
class StudyRow:
    """The first cell names the row."""

    cells: tuple[str, ...]
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class Study:
    """A table, what it says in a sentence, and a drawing where there is one."""

    title: str
    lede: str
    headers: tuple[str, ...]
    rows: tuple[StudyRow, ...]
    chart: SettingChart | None = None
    verdict: str = ""
    is_ranking: bool = False
    """Whether the verdict says what came of the runs, so that none has to be read from them."""
