"""`groundup tokenizer compare`: tokenizers side by side on each text."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field
from tyro.conf import Positional

from groundup.cli.shared import ReadingFlags, SplitFlags
from groundup.errors import DataError, TokenizerError

if TYPE_CHECKING:
    from groundup.tokenizer.definition import TokenizerDefinition


class Arguments(ReadingFlags, SplitFlags):
    """Compare tokenizers on texts: bytes per token, tokens per second, time for a large corpus."""

    tokenizers: Positional[tuple[Path, ...]]
    """Tokenizer files, of any known format."""

    texts: tuple[str, ...]
    """The texts: files, folders or globs, measured one by one."""

    corpus_gb: float = Field(825, gt=0)
    """Size of the corpus whose encoding time is estimated, in units of 10^9 bytes."""

    num_threads: int | None = Field(None, ge=1)
    """Threads to encode with; all cores if not given."""

    json_: bool = False
    """Print a JSON list instead of a table."""


def run(arguments: Arguments) -> None:
    """Measure every tokenizer on every text and print one table."""
    from groundup.cli.terminal import print_table
    from groundup.experiments.tokenizer_comparison import compare_tokenizers
    from groundup.planner.quantities import show_bytes
    from groundup.runtime import format_duration
    from groundup.tokenizer import Tokenizer

    paths = list(dict.fromkeys(arguments.tokenizers))
    is_told_by_name = len({path.name for path in paths}) == len(paths)
    tokenizers = {
        path.name if is_told_by_name else str(path): _read(arguments, path) for path in paths
    }
    texts = {text: arguments.read_texts((text,)) for text in arguments.texts}
    for text, documents in texts.items():
        if not any(documents):
            raise DataError(f"no text in {text}; name files with text")
    results = compare_tokenizers(
        {name: Tokenizer.from_definition(one) for name, one in tokenizers.items()},
        texts,
        corpus_bytes=arguments.corpus_gb * 1e9,
        num_threads=arguments.num_threads,
    )
    if arguments.json_:
        print(json.dumps([asdict(result) for result in results], ensure_ascii=False, indent=2))
        return
    rows = [
        [
            result.text,
            result.tokenizer,
            f"{result.vocab_size:,}",
            show_bytes(result.num_bytes),
            f"{result.num_tokens:,}",
            f"{result.bytes_per_token:.3f}",
            f"{result.tokens_per_second:,.0f}",
            format_duration(result.corpus_seconds),
        ]
        for result in results
    ]
    headers = ("text", "tokenizer", "vocabulary", "size", "tokens", "bytes/token", "tokens/s")
    print_table("tokenizers compared", (*headers, f"time for {arguments.corpus_gb:,.4g} GB"), rows)


def _read(arguments: Arguments, path: Path) -> "TokenizerDefinition":
    """A tokenizer file; --pattern is for one that does not say its own."""
    try:
        return arguments.model_copy(update={"pattern": None}).read(path)
    except TokenizerError:
        return arguments.read(path)
