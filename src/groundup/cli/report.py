"""`groundup report`: compare runs on one page that opens offline."""

from pathlib import Path
from typing import TYPE_CHECKING

from groundup.cli.arguments import Positional
from groundup.cli.shared import RUNS_FOLDER, unknown_run
from groundup.cli.terminal import print_table, printable
from groundup.config import Settings
from groundup.errors import ConfigError

if TYPE_CHECKING:
    from groundup.experiments.report.tables import Table


class Arguments(Settings):
    """Compare runs: curves, a table with intervals, settings, cost."""

    runs: Positional[tuple[str, ...]]
    """Run folders or names under runs, folders of runs, or sweeps."""

    out: Path = Path("report.html")
    """HTML file to write."""

    title: str | None = None
    """Title of the page. Default: the name of the sweep or runs."""


def run(arguments: Arguments) -> None:
    from groundup.experiments.report.comparison import compare, run_notes
    from groundup.experiments.report.page import render
    from groundup.files import write_text_atomic

    out, paths = arguments.out, []
    if out.is_dir() or out.suffix not in (".html", ".htm"):
        raise ConfigError(f"--out {out} must be a file that ends in .html")
    for name in arguments.runs:
        found = [path for path in (Path(name), RUNS_FOLDER / name) if path.exists()]
        if not found:
            raise unknown_run(name)
        paths.append(found[0])
    comparison = compare(paths, title=arguments.title)
    write_text_atomic(out, render(comparison))
    print_document_table(comparison.results)
    for line in (*comparison.warnings, *run_notes(comparison.runs), f"written: {out}"):
        print(printable(line))


def print_document_table(table: "Table") -> None:
    """Print a table of the page, with its marks in a last column."""
    rows = []
    for index, row in enumerate(table.rows):
        marks = [mark.text for mark in table.marks[index]] if table.marks else []
        rows.append([*row.values(), "; ".join(marks)])
    print_table(table.title, [*table.headers, ""], rows)
