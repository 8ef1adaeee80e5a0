"""`groundup report`: runs compared on one page that opens offline, or as Markdown with drawings."""

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from groundup.cli.runs import RUNS_FOLDER
from groundup.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Arguments:
    """Compare runs: curves, a table with intervals, settings, cost, samples, environment."""

    runs: Positional[tuple[str, ...]]
    """Run folders or names under runs, folders of runs, sweeps, or metrics files (.jsonl)."""

    out: Path | None = None
    """The page to write; report.html if neither this nor --markdown is given."""

    markdown: Path | None = None
    """A folder to write Markdown and its drawings into, as for docs/experiments."""

    title: str | None = None
    """What the page is called; the sweep's name or the runs' if not given."""

    why: str = ""
    """What the runs were to find out, in a sentence or two; the sweep's own words if not given."""


def run(arguments: Arguments) -> None:
    """Read, compare, write, and say what came out."""
    from groundup.experiments.figure_text import visible
    from groundup.experiments.report import make_report
    from groundup.experiments.report_html import render_html
    from groundup.experiments.report_markdown import render_markdown
    from groundup.files import write_text_atomic

    if not arguments.runs:
        raise ConfigError("groundup report needs at least one run: name its folder")
    paths = [find_path(run) for run in arguments.runs]
    report = make_report(paths, title=arguments.title, why=arguments.why)
    written = []
    if arguments.markdown is not None:
        for name, text in render_markdown(report).items():
            write_text_atomic(arguments.markdown / name, text)
            if name.endswith(".md"):
                written.append(arguments.markdown / name)
    out = arguments.out or (None if arguments.markdown else Path("report.html"))
    if out is not None:
        write_text_atomic(out, render_html(report))
        written.append(out)
    for line in (*report.verdicts, *report.warnings):
        print(" ".join(visible(line).split()))
    for path in written:
        print(f"written: {visible(str(path))}")


def find_path(run: str) -> Path:
    """What a person means by a word: a path that exists, or the name of a run."""
    for path in (Path(run), RUNS_FOLDER / run):
        if path.exists():
            return path
    names = sorted(folder.name for folder in RUNS_FOLDER.glob("*/") if folder.is_dir())
    raise ConfigError(
        f"there is no run {run}, neither as a path nor in {RUNS_FOLDER}: {did_you_mean(run, names)}"
    )
