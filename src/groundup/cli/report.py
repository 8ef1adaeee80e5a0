"""`groundup report`: runs compared on one page that opens offline, or as Markdown with drawings."""

from collections.abc import Collection
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

    finding: str | None = None
    """What you make of it, in your own words, or @FILE that holds them; finding.txt in the folder
    of a sweep if not given."""


def run(arguments: Arguments) -> None:
    """Read, compare, write, and say what came out."""
    from groundup.experiments.report.contents import make_report, run_notes
    from groundup.experiments.report.figure_text import visible
    from groundup.experiments.report.html_page import render_html
    from groundup.experiments.report.markdown_page import render_markdown
    from groundup.files import write_text_atomic

    if not arguments.runs:
        raise ConfigError("groundup report needs at least one run: name its folder")
    if arguments.out is not None and arguments.out.is_dir():
        raise ConfigError(
            f"--out {arguments.out} is a folder: name the page, such as "
            f"{arguments.out / 'report.html'}"
        )
    if arguments.out is not None and arguments.out.suffix not in (".html", ".htm"):
        raise ConfigError(f"--out {arguments.out} is to be a page: let its name end in .html")
    if arguments.markdown is not None and arguments.markdown.is_file():
        raise ConfigError(f"--markdown {arguments.markdown} is a file: name a folder")
    paths = [find_path(run) for run in arguments.runs]
    report = make_report(
        paths,
        title=arguments.title,
        why=arguments.why,
        finding=read_finding(arguments.finding),
    )
    written = []
    if arguments.markdown is not None:
        files = {arguments.markdown / name: text for name, text in render_markdown(report).items()}
        for path, text in files.items():
            write_text_atomic(path, text)
        written += [path for path in files if path.suffix == ".md"]
        remove_old_drawings(files)
    out = arguments.out or (None if arguments.markdown else Path("report.html"))
    if out is not None:
        write_text_atomic(out, render_html(report))
        written.append(out)
    for line in (*report.verdicts, *report.warnings, *run_notes(report.runs)):
        print(" ".join(visible(line).split()))
    for path in written:
        print(f"written: {visible(str(path))}")


def remove_old_drawings(files: Collection[Path]) -> None:
    """Take away what an earlier report of the same name drew and this one does not."""
    for folder in {path.parent for path in files if path.suffix == ".svg"}:
        for path in folder.glob("*.svg"):
            if path not in files and path.read_bytes().startswith(b'<svg class="chart"'):
                path.unlink()


def read_finding(words: str | None) -> str | None:
    """The words themselves, or what stands in the file that they name."""
    if words is None or not words.startswith("@"):
        return words
    path = Path(words[1:])
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(
            f"--finding {words}: {path} cannot be read ({error.strerror}); name a text file after "
            f"the @, or write the words themselves"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"--finding {words}: {path} is not UTF-8 text; save it as such"
        ) from error


def find_path(run: str) -> Path:
    """What a person means by a word: a path that exists, or the name of a run."""
    for path in (Path(run), RUNS_FOLDER / run):
        if path.exists():
            return path
    names = sorted(folder.name for folder in RUNS_FOLDER.glob("*/") if folder.is_dir())
    raise ConfigError(
        f"there is no run {run}, neither as a path nor in {RUNS_FOLDER}: {did_you_mean(run, names)}"
    )
