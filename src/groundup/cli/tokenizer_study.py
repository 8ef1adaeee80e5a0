"""`groundup tokenizer study`: every tokenizer on every corpus, at home and abroad, and how fast."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import Positional

from groundup.cli.report import read_finding
from groundup.errors import ConfigError, DataError

if TYPE_CHECKING:
    from groundup.experiments.tokenizer_study.study import TokenizerStudy


@dataclass(frozen=True)
class Arguments:
    """Measure tokenizers on corpora: those given, and those learned from each corpus.

    The last tenth of each corpus is what is measured; nothing is learned from it.
    """

    corpora: Positional[tuple[str, ...]]
    """Files, folders or globs, a corpus each."""

    tokenizers: tuple[Path, ...] = ()
    """Tokenizer files to measure, of any known format."""

    vocab_sizes: tuple[int, ...] = ()
    """Learn a tokenizer of each of these sizes from each corpus."""

    special_tokens: tuple[str, ...] = ("<|endoftext|>",)
    """Special tokens of those that are learned."""

    megabytes: float = 20.0
    """The most text to take from the beginning of each corpus."""

    num_threads: int | None = None
    """Threads for the rates by the wall clock, which the JSON file has; all cores if not given."""

    out: tuple[Path, ...] = ()
    """Files to write: a .json holds all that was measured, a .html is a page that opens offline."""

    markdown: Path | None = None
    """A folder to write Markdown and its drawing into, as for docs/experiments."""

    title: str = "Tokenizers"
    """What the page is called."""

    why: str = ""
    """What was to be found out, in a sentence or two."""

    finding: str | None = None
    """What you make of it, in your own words, or @FILE that holds them."""


def run(arguments: Arguments) -> None:
    """Read, learn, measure, print, write."""
    from groundup.cli.temperatures import describe_device
    from groundup.experiments.report.figure_text import visible
    from groundup.experiments.tokenizer_study.study import study_tokenizers
    from groundup.tokenizer import Tokenizer

    if not arguments.corpora:
        raise ConfigError("groundup tokenizer study needs at least one corpus to measure on")
    if not 0 < arguments.megabytes < float("inf"):
        raise ConfigError(f"--megabytes is {arguments.megabytes:g}: give a number above 0")
    check_places(arguments)
    finding = read_finding(arguments.finding) or ""
    tokenizers = dict(
        zip(
            _short_names([str(path) for path in arguments.tokenizers]),
            map(Tokenizer.load, arguments.tokenizers),
            strict=True,
        )
    )
    max_bytes = round(arguments.megabytes * 1e6)
    names = _short_names(list(arguments.corpora))
    study = study_tokenizers(
        {n: _read(c, max_bytes) for n, c in zip(names, arguments.corpora, strict=True)},
        tokenizers,
        vocab_sizes=arguments.vocab_sizes,
        special_tokens=arguments.special_tokens,
        num_threads=arguments.num_threads,
        device=describe_device("cpu") if arguments.out or arguments.markdown else "",
    )
    print_study(study)
    for path in write_study(study, arguments, finding):
        print(f"written: {visible(str(path))}")


def check_places(arguments: Arguments) -> None:
    """Refuse places that could not be written to, before there is something to lose."""
    for path in arguments.out:
        if path.is_dir():
            raise ConfigError(f"--out {path} is a folder: name a file")
        if path.suffix not in (".json", ".html"):
            raise ConfigError(f"--out {path} ends in neither .json nor .html: choose one of them")
    if arguments.markdown is not None and arguments.markdown.is_file():
        raise ConfigError(f"--markdown {arguments.markdown} is a file: name a folder")


def write_study(study: "TokenizerStudy", arguments: Arguments, finding: str) -> list[Path]:
    """Every file that was asked for; those a reader would open."""
    from groundup.experiments.tokenizer_study.page import render_html, render_markdown
    from groundup.files import write_json_atomic, write_text_atomic

    title, why = arguments.title, arguments.why
    for path in arguments.out:
        if path.suffix == ".json":
            write_json_atomic(path, study.as_json())
        else:
            write_text_atomic(path, render_html(study, title, why=why, finding=finding))
    written = list(arguments.out)
    if arguments.markdown is not None:
        files = render_markdown(study, title, why=why, finding=finding)
        for name, text in files.items():
            write_text_atomic(arguments.markdown / name, text)
        written.append(arguments.markdown / next(iter(files)))
    return written


def print_study(study: "TokenizerStudy") -> None:
    """Three tables with a row for each tokenizer and a column for each corpus."""
    from groundup.cli.tables import print_table

    headers = ("tokenizer", *study.corpora)
    rows = {
        name: [study.cell(name, corpus) for corpus in study.corpora] for name in study.tokenizers
    }
    print_table(
        "bytes per token",
        headers,
        [[name, *(f"{cell.bytes_per_token:.3f}" for cell in row)] for name, row in rows.items()],
    )
    learned = {name: row for name, row in rows.items() if row[0].relative_to_home is not None}
    if learned:
        print_table(
            "in parts of the corpus' own tokenizer of that size",
            headers,
            [
                [name, *(f"{cell.relative_to_home or 0:.1%}" for cell in row)]
                for name, row in learned.items()
            ],
        )
    print_table(
        "MB/s of one core, text seen first",
        headers,
        [
            [name, *(f"{cell.bytes_per_core_second / 1e6:,.1f}" for cell in row)]
            for name, row in rows.items()
        ],
    )


def _read(corpus: str, max_bytes: int) -> str:
    from groundup.text_files import read_text_blocks

    parts: list[bytes] = []
    num_bytes = 0
    for block in read_text_blocks((corpus,)):
        parts.append(bytes(block)[: max_bytes - num_bytes])
        num_bytes += len(parts[-1])
        if num_bytes >= max_bytes:
            break
    text = b"".join(parts).decode("utf-8", "ignore")
    if not text:
        raise DataError(f"there is no text in {corpus}; name files with text")
    return text


def _short_names(paths: list[str]) -> list[str]:
    """The names of the files without their endings, or the whole paths where these are alike."""
    names = [Path(path).name.split(".")[0] or path for path in paths]
    return names if len(set(names)) == len(names) else paths
