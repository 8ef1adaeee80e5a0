"""`groundup report`: runs compared on one page that opens offline."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import Positional

from groundup.cli.shared import RUNS_FOLDER
from groundup.config import Settings
from groundup.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from groundup.experiments.report.tables import Cell, Table


class Arguments(Settings):
    """Compare runs: curves, a table with intervals, settings, cost, samples, environment."""

    runs: Positional[tuple[str, ...]]
    """Run folders or names under runs, folders of runs, sweeps, or metrics files (.jsonl)."""

    out: Path | None = None
    """The page to write; report.html if not given."""

    title: str | None = None
    """What the page is called; the sweep's name or the runs' if not given."""


def run(arguments: Arguments) -> None:
    """Read, compare, write, and say what came out."""
    from groundup.experiments.report.comparison import compare, run_notes
    from groundup.experiments.report.page import render
    from groundup.files import write_text_atomic

    out = arguments.out or Path("report.html")
    if out.is_dir() or out.suffix not in (".html", ".htm"):
        raise ConfigError(f"--out {out} must be a file that ends in .html")
    paths = [find_path(run) for run in arguments.runs]
    comparison = compare(paths, title=arguments.title)
    write_text_atomic(out, render(comparison))
    for study in comparison.studies:
        print_document_table(study.tables[0])
    print_document_table(comparison.results)
    print_lines((*comparison.warnings, *run_notes(comparison.runs)))
    print_lines([f"written: {out}"])


def print_document_table(table: "Table") -> None:
    """A table of a page on the screen; marks stand in a last column."""
    from groundup.cli.terminal import print_table
    from groundup.experiments.report.page import visible

    def text_of(cell: "Cell | str") -> str:
        return " ".join(visible(cell if isinstance(cell, str) else cell.text).split())

    rows = []
    for row in table.rows:
        marks = () if isinstance(row[0], str) else row[0].marks
        rows.append([*map(text_of, row), "; ".join(mark.text for mark in marks)])
    if not any(row[-1] for row in rows):
        rows = [row[:-1] for row in rows]
    headers = [*map(text_of, table.headers), ""][: len(rows[0]) if rows else None]
    print_table(visible(table.title), headers, rows)


def print_lines(lines: Iterable[str]) -> None:
    """Each on a line of its own; nothing in them can command the terminal."""
    from groundup.experiments.report.page import visible

    for line in lines:
        print(" ".join(visible(line).split()))


def find_path(run: str) -> Path:
    """What a person means by a word: a path that exists, or the name of a run."""
    for path in (Path(run), RUNS_FOLDER / run):
        if path.exists():
            return path
    names = sorted(folder.name for folder in RUNS_FOLDER.glob("*/") if folder.is_dir())
    raise ConfigError(
        f"there is no run {run}, neither as a path nor in {RUNS_FOLDER}: {did_you_mean(run, names)}"
    )
