"""`groundup tokenizer decode`: ids back to text."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import Positional

from groundup.cli.shared import TokenizerFlags
from groundup.errors import ConfigError, DataError

if TYPE_CHECKING:
    from groundup.tokenizer import Tokenizer


class Arguments(TokenizerFlags):
    """Decode ids into text; bytes that are not UTF-8 become U+FFFD."""

    file: Positional[str] = "-"
    """The ids: text, .npy or .bin as `encode` writes them; - is standard input, as text."""

    ids: str | None = None
    """Decode these ids, such as "15496 995", instead of a file."""

    out: Path | None = None
    """Write the text here instead of printing it."""


def run(arguments: Arguments) -> None:
    """Decode and write."""
    from groundup.files import write_text_atomic
    from groundup.text_files import check_not_input, find_sources

    if arguments.ids is not None and arguments.file != "-":
        raise ConfigError(f"give either --ids or the file {arguments.file}, not both")
    if arguments.out is not None and arguments.file != "-":
        check_not_input(arguments.out, find_sources([arguments.file]))
    tokenizer = arguments.load()
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


def _parse_ids(text: str, source: str) -> list[int]:
    words = text.replace(",", " ").strip().removeprefix("[").removesuffix("]").split()
    ids = []
    for number, word in enumerate(words, start=1):
        try:
            ids.append(int(word))
        except ValueError:
            raise DataError(
                f"word {number} of {source} is {word[:40]!r}; ids are integers with spaces between"
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
            f"ids are a 1-D array of integers"
        )
    return ids


def _read_bin(path: Path, vocab_size: int) -> Any:
    import numpy

    data = path.read_bytes()
    dtype = numpy.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
    if len(data) % dtype.itemsize:
        raise DataError(
            f"{path} has {len(data)} bytes, not a multiple of the {dtype} ids that a "
            f"vocabulary of {vocab_size} takes; is it from another tokenizer?"
        )
    return numpy.frombuffer(data, dtype)
