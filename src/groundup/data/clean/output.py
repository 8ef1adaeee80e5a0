"""Kept documents as JSON lines, packed as the name says, in a file that is whole or absent."""

import contextlib
import gzip
import json
import lzma
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from groundup.errors import ConfigError, MissingExtraError
from groundup.files import atomic_path
from groundup.text_files.inputs import Compression, classify

# The backslash first: the others bring some of their own.
_ESCAPES = (
    (b"\\", b"\\\\"),
    (b'"', b'\\"'),
    (b"\n", b"\\n"),
    (b"\r", b"\\r"),
    (b"\t", b"\\t"),
)
_CONTROLS = bytes(range(32))


def check_output(out: Path) -> Compression | None:
    """How the file is packed; ConfigError for a name that would not be read back as it is."""
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder; name the file to write, such as clean.jsonl")
    kind, compression = classify(out)
    if kind != "json_lines":
        raise ConfigError(
            f"--out {out} is not the name of JSON lines, which hold any text; name it .jsonl, "
            f".jsonl.gz, .jsonl.zst or .jsonl.xz"
        )
    return compression


@contextlib.contextmanager
def open_output(out: Path) -> Iterator[IO[bytes]]:
    """Yield a file to write to, which becomes `out` when the block succeeds."""
    compression = check_output(out)
    with atomic_path(out) as temporary, temporary.open("wb") as file:
        if compression is None:
            yield file
            return
        with _packed(file, compression) as packed:
            yield packed


def encode_line(text: bytes | memoryview, field: str) -> bytes:
    """A document as a line; its bytes are escaped as they are, which is faster than as a string.

    text: UTF-8.
    field: the name of the text in the line.
    """
    data = bytes(text)
    for character, escape in _ESCAPES:
        data = data.replace(character, escape)
    if len(data.translate(None, _CONTROLS)) < len(data):
        data = re.sub(rb"[\x00-\x1f]", lambda found: b"\\u%04x" % ord(found[0]), data)
    return b'{%s: "%s"}\n' % (json.dumps(field, ensure_ascii=False).encode(), data)


def _packed(file: IO[bytes], compression: Compression) -> IO[bytes]:
    if compression == "gzip":
        # Without a time in it the same documents give the same bytes.
        return cast(IO[bytes], gzip.GzipFile("", "wb", 6, file, mtime=0))
    if compression == "xz":
        return cast(IO[bytes], lzma.open(file, "wb", preset=1))
    try:
        import zstandard
    except ImportError as error:
        raise MissingExtraError("writing .zst files", "zstd") from error
    return cast(IO[bytes], zstandard.ZstdCompressor().stream_writer(file, closefd=False))
