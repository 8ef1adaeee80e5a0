"""`groundup tokenizer decode`: ids back to text."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import Positional, UseAppendAction

from groundup.cli.streams import as_text
from groundup.errors import ConfigError, DataError

if TYPE_CHECKING:
    from groundup.tokenizer import Tokenizer


@dataclass(frozen=True)
class Arguments:
    """Turn ids back into text; bytes that are not UTF-8 become U+FFFD."""

    file: Positional[str] = "-"
    """The ids: text, .npy or .bin as `encode` writes them; - is standard input, as text."""

    tokenizer: Path = Path("tokenizer.json")
    """The tokenizer file, of any known format."""

    ids: str | None = None
    """Decode these ids, such as "15496 995", instead of a file."""

    out: Path | None = None
    """Write the text here instead of printing it."""

    pattern: str | None = None
    """The split pattern, for tokenizer files that do not say theirs."""

    special_token: UseAppendAction[tuple[str, ...]] = ()
    """A special token besides the tokenizer's own; repeat for more."""


def run(arguments: Arguments) -> None:
    """Decode and write."""
    from groundup.files import write_text_atomic
    from groundup.tokenizer import Tokenizer

    if arguments.ids is not None and arguments.file != "-":
        raise ConfigError(f"give either --ids or the file {arguments.file}, not both")
    tokenizer = Tokenizer.load(
        arguments.tokenizer,
        pattern=arguments.pattern,
        special_tokens=list(map(as_text, arguments.special_token)) or None,
    )
    text = tokenizer.decode(_read_ids(arguments, tokenizer))
    if arguments.out is not None:
        write_text_atomic(arguments.out, text)
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def _read_ids(arguments: Arguments, tokenizer: "Tokenizer") -> Any:
    if arguments.ids is not None:
        return _parse_ids(arguments.ids, "--ids")
    if arguments.file == "-":
        return _parse_ids(sys.stdin.buffer.read().decode("utf-8", "replace"), "standard input")
    path = Path(arguments.file)
    if path.suffix == ".npy":
        return _read_npy(path)
    if path.suffix == ".bin":
        return _read_bin(path, tokenizer.vocab_size)
    return _parse_ids(path.read_text("utf-8", "replace"), str(path))


def _parse_ids(text: str, place: str) -> list[int]:
    words = text.replace(",", " ").strip().removeprefix("[").removesuffix("]").split()
    ids = []
    for number, word in enumerate(words, start=1):
        try:
            ids.append(int(word))
        except ValueError:
            raise DataError(
                f"word {number} of {place} is {word[:40]!r}; ids are whole numbers with spaces "
                f"between"
            ) from None
    return ids


def _read_npy(path: Path) -> Any:
    import numpy

    try:
        ids = numpy.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be read as an array of ids: {error}") from None
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise DataError(
            f"{path} holds an array of {ids.dtype} with {ids.ndim} dimensions; "
            f"ids are one row of whole numbers"
        )
    return ids


def _read_bin(path: Path, vocab_size: int) -> Any:
    import numpy

    data = path.read_bytes()
    dtype = numpy.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
    if len(data) % dtype.itemsize:
        raise DataError(
            f"{path} has {len(data)} bytes, which is no whole number of {dtype} ids as a "
            f"vocabulary of {vocab_size} takes; is it from another tokenizer?"
        )
    return numpy.frombuffer(data, dtype)
