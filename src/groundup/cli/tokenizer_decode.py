"""`groundup tokenizer decode`: ids back to text."""

import sys
from pathlib import Path
from typing import Any

from groundup.cli.arguments import Positional
from groundup.cli.shared import TokenizerFlags
from groundup.errors import ConfigError, DataError


class Arguments(TokenizerFlags):
    """Decode ids into text; invalid UTF-8 becomes U+FFFD."""

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
    text = tokenizer.decode(_read_ids(arguments, tokenizer.vocab_size))
    if arguments.out is not None:
        write_text_atomic(arguments.out, text)
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def _read_ids(arguments: Arguments, vocab_size: int) -> Any:
    import numpy

    path, text = Path(arguments.file), arguments.ids
    is_piped = arguments.file == "-"
    name = "standard input" if is_piped else arguments.file
    try:
        if text is not None:
            name = "--ids"
        elif path.suffix == ".npy":
            found = numpy.load(path, allow_pickle=False)
            if found.ndim != 1 or found.dtype.kind not in "iu":
                raise ValueError(f"ids are a 1-D array of integers, not {found.dtype}")
            return found
        elif path.suffix == ".bin":
            return numpy.frombuffer(path.read_bytes(), "<u2" if vocab_size <= 1 << 16 else "<u4")
        else:
            data = sys.stdin.buffer.read() if is_piped else path.read_bytes()
            text = data.decode("utf-8", "replace")
        return list(map(int, text.replace(",", " ").strip(" []\n").split()))
    except (ValueError, EOFError) as error:
        raise DataError(f"{name} cannot be read as ids: {error}") from None
