"""`groundup tokenizer stats`: what a tokenizer makes of some text, and how fast."""

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from groundup.cli.shared_flags import ReadingFlags, SplitFlags
from groundup.errors import ConfigError, DataError


@dataclass(frozen=True, kw_only=True)
class Arguments(ReadingFlags, SplitFlags):
    """Measure bytes per token, speed and vocabulary use on text."""

    tokenizer: Positional[Path]
    """The tokenizer file, of any known format."""

    files: Positional[tuple[str, ...]]
    """Files, folders, globs or - for standard input."""

    num_threads: int | None = None
    """Threads to encode with; all cores if not given."""


def run(arguments: Arguments) -> None:
    """Measure and print."""
    from groundup.cli.tables import print_results, show_token
    from groundup.planner.quantities import show_bytes
    from groundup.tokenizer import Tokenizer
    from groundup.tokenizer.inspection import measure

    if not arguments.files:
        raise ConfigError("groundup tokenizer stats needs at least one file to measure on")
    tokenizer = Tokenizer.from_definition(arguments.read(arguments.tokenizer))
    texts = arguments.read_texts(arguments.files)
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
