"""`groundup tokenizer stats`: what a tokenizer makes of some text, and how fast."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from groundup.errors import ConfigError, DataError


@dataclass(frozen=True)
class Arguments:
    """Measure bytes per token, speed and vocabulary use on text."""

    tokenizer: Positional[Path]
    """The tokenizer file, of any known format."""

    files: Positional[tuple[str, ...]]
    """Files, folders, globs or - for standard input."""

    num_threads: int | None = None
    """Threads to encode with; all cores if not given."""

    field: str = "text"
    """The field of a JSON-lines record that holds the text."""

    column: str = "text"
    """The column of a Parquet file that holds the text."""

    errors: Literal["strict", "replace", "skip"] = "strict"
    """What to do with bytes that are not UTF-8: stop, put U+FFFD, or leave the document out."""


def run(arguments: Arguments) -> None:
    """Measure and print."""
    from groundup.cli.tables import print_results, show_token
    from groundup.planner.quantities import show_bytes
    from groundup.tokenizer import Tokenizer
    from groundup.tokenizer.inspection import measure

    if not arguments.files:
        raise ConfigError("groundup tokenizer stats needs at least one file to measure on")
    tokenizer = Tokenizer.load(arguments.tokenizer)
    texts = read_texts(
        arguments.files,
        field=arguments.field,
        column=arguments.column,
        errors=arguments.errors,
    )
    if not texts:
        raise DataError(f"no text in {', '.join(arguments.files)}; name files with text")
    result = measure(tokenizer, texts, num_threads=arguments.num_threads)
    print_results(
        f"{arguments.tokenizer} on {', '.join(arguments.files)}",
        [
            ("text", f"{show_bytes(result.num_bytes)}, {result.num_characters:,} characters"),
            ("tokens", f"{result.num_tokens:,}"),
            ("bytes per token", f"{result.bytes_per_token:.3f}"),
            ("tokens per word", f"{result.tokens_per_word:.3f}"),
            (
                "vocabulary use",
                f"{result.num_distinct_tokens:,} of {result.vocab_size:,} "
                f"({result.vocabulary_use:.1%})",
            ),
            ("longest tokens", ", ".join(map(show_token, result.longest_tokens))),
            ("speed, text seen first", _describe_rate(result.first_bytes_per_second)),
            ("speed, the same again", _describe_rate(result.best_bytes_per_second)),
        ],
    )


def _describe_rate(bytes_per_second: float) -> str:
    from groundup.runtime import format_duration
    from groundup.tokenizer.inspection import estimate_large_corpus_seconds

    duration = format_duration(estimate_large_corpus_seconds(bytes_per_second))
    return f"{bytes_per_second / 1e6:,.1f} MB/s, 825 GB would take {duration}"


def read_texts(
    files: tuple[str, ...], *, field: str, column: str, errors: Literal["strict", "replace", "skip"]
) -> list[str]:
    """The text of the files in blocks that end where documents end."""
    from groundup.text_files import read_text_blocks

    blocks = read_text_blocks(files, field=field, column=column, errors=errors)
    return [str(block, "utf-8") for block in blocks]
