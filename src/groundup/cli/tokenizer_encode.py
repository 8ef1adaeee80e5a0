"""`groundup tokenizer encode`: text to ids, as text or as an array file."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from groundup.cli.arguments import Positional
from groundup.cli.shared import TokenizerFlags
from groundup.cli.terminal import as_text
from groundup.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy

_IDS_AT_ONCE = 1 << 16


class Arguments(TokenizerFlags):
    """Encode text into ids."""

    file: Positional[str] = "-"
    """The text to encode, unpacked if it ends with .gz, .zst or .xz; - is standard input."""

    text: str | None = None
    """Encode this text instead of a file."""

    out: Path | None = None
    """Write the ids here, as .npy, .bin (uint16 or uint32) or text, instead of printing them."""


def run(arguments: Arguments) -> None:
    """Encode and write."""
    from groundup.text_files import check_not_input, find_sources

    if arguments.text is not None and arguments.file != "-":
        raise ConfigError(f"give either --text or the file {arguments.file}, not both")
    if arguments.out is not None and arguments.file != "-":
        check_not_input(arguments.out, find_sources([arguments.file]))
    tokenizer = arguments.load()
    text = read_text(arguments.file) if arguments.text is None else as_text(arguments.text)
    ids = tokenizer.encode_to_numpy(text)
    if arguments.out is None:
        sys.stdout.writelines(_as_text(ids))
    else:
        _write(ids, arguments.out)


def read_text(file: str) -> str:
    """The text of a file or of standard input; a byte that is not UTF-8 is a DataError."""
    from groundup.text_files import find_sources
    from groundup.text_files.opening import open_source

    if Path(file).is_dir():
        raise DataError(f"{file} is a folder; name a file")
    if file == "-":
        data = sys.stdin.buffer.read()
    else:
        with open_source(find_sources([file])[0]) as (stream, _):
            data = stream.read()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        name = "standard input" if file == "-" else file
        raise DataError(f"{name} is not UTF-8 at byte {error.start}; convert it first") from None


def _as_text(ids: "numpy.ndarray") -> Iterator[str]:
    """In parts: as objects, ids take many times their space."""
    for begin in range(0, len(ids), _IDS_AT_ONCE):
        yield " " if begin else ""
        yield " ".join(map(str, ids[begin : begin + _IDS_AT_ONCE].tolist()))
    yield "\n"


def _write(ids: "numpy.ndarray", path: Path) -> None:
    from groundup.disk import open_stream
    from groundup.files import atomic_path

    with atomic_path(path) as temporary, open_stream(temporary) as file:
        if path.suffix == ".npy":
            import numpy

            numpy.save(file, ids, allow_pickle=False)
        elif path.suffix == ".bin":
            file.write(ids.astype(ids.dtype.newbyteorder("<"), copy=False).tobytes())
        else:
            file.writelines(part.encode() for part in _as_text(ids))
