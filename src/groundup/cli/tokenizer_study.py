"""`groundup tokenizer study`: every tokenizer on every corpus, at home and abroad, and how fast."""

from dataclasses import asdict, dataclass
from pathlib import Path

from tyro.conf import Positional

from groundup.cli.report import (
    check_outputs,
    print_document,
    print_written,
    read_finding,
    write_document,
)
from groundup.errors import ConfigError, DataError


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
    """A folder to write Markdown and its pictures into, as for docs/experiments (extra report)."""

    title: str = "Tokenizers"
    """What the page is called."""

    why: str = ""
    """What was to be found out, in a sentence or two."""

    finding: str | None = None
    """What you make of it, in your own words, or @FILE that holds them."""


def run(arguments: Arguments) -> None:
    """Read, train, measure, print, write."""
    from groundup.cli.temperatures import describe_device
    from groundup.experiments.report.tokenizer_page import tokenizer_document
    from groundup.experiments.tokenizer_study import study_tokenizers
    from groundup.files import write_json_atomic
    from groundup.tokenizer import Tokenizer

    if not arguments.corpora:
        raise ConfigError("groundup tokenizer study needs at least one corpus to measure on")
    if not 0 < arguments.megabytes < float("inf"):
        raise ConfigError(f"--megabytes is {arguments.megabytes:g}: give a number above 0")
    check_outputs(arguments.out, (".json", ".html"), arguments.markdown)
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
    document = tokenizer_document(study, arguments.title, why=arguments.why, finding=finding)
    print_document(document)
    for path in arguments.out:
        if path.suffix == ".json":
            write_json_atomic(path, asdict(study))
            print_written([path])
        else:
            print_written(write_document(document, path, None))
    print_written(write_document(document, None, arguments.markdown))


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
