"""`groundup tokenizer compare`: two tokenizers side by side on each text."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import Positional

from groundup.cli.shared_flags import ReadingFlags, SplitFlags
from groundup.errors import ConfigError, TokenizerError

if TYPE_CHECKING:
    from groundup.tokenizer.definition import TokenizerDefinition


@dataclass(frozen=True, kw_only=True)
class Arguments(ReadingFlags, SplitFlags):
    """Set two tokenizers side by side on the same texts."""

    first: Positional[Path]
    """A tokenizer file, of any known format."""

    second: Positional[Path]
    """The tokenizer file to set beside it."""

    files: Positional[tuple[str, ...]]
    """The texts: files, folders or globs, measured one by one."""


def run(arguments: Arguments) -> None:
    """Measure both on each text and print one table."""
    from groundup.cli.tables import print_table
    from groundup.planner.quantities import show_bytes
    from groundup.tokenizer import Tokenizer
    from groundup.tokenizer.inspection import measure

    if not arguments.files:
        raise ConfigError("groundup tokenizer compare needs at least one file to compare on")
    names = _tell_apart(arguments.first, arguments.second)
    paths = (arguments.first, arguments.second)
    definitions = [_read(arguments, path) for path in paths]
    tokenizers = dict(zip(names, map(Tokenizer.from_definition, definitions), strict=True))
    rows = []
    for file in arguments.files:
        texts = arguments.read_texts((file,))
        for name, tokenizer in tokenizers.items():
            result = measure(tokenizer, texts)
            rows.append(
                [
                    file,
                    name,
                    show_bytes(result.num_bytes),
                    f"{result.num_tokens:,}",
                    f"{result.bytes_per_token:.3f}",
                    f"{result.tokens_per_word:.3f}",
                    f"{result.vocabulary_use:.1%}",
                    f"{result.first_bytes_per_second / 1e6:,.1f}",
                    f"{result.best_bytes_per_second / 1e6:,.1f}",
                ]
            )
    headers = (
        "text",
        "tokenizer",
        "size",
        "tokens",
        "bytes/token",
        "tokens/word",
        "use",
        "MB/s",
        "again",
    )
    print_table(f"{names[0]} beside {names[1]}", headers, rows)


def _read(arguments: Arguments, path: Path) -> "TokenizerDefinition":
    """A tokenizer file; the pattern is for one that says none, the other keeps its own."""
    try:
        return replace(arguments, pattern=None).read(path)
    except TokenizerError:
        return arguments.read(path)


def _tell_apart(first: Path, second: Path) -> tuple[str, str]:
    if first.name != second.name:
        return first.name, second.name
    return (str(first), str(second)) if first != second else (f"{first} (1)", f"{second} (2)")
