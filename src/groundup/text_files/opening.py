"""Opening sources: files, pipes and standard input, with gzip and zstd undone on the way.

Damage that shows while reading becomes a DataError that names the file.
"""

import contextlib
import gzip
import io
import mmap
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from typing import IO, Any, NamedTuple, cast

from groundup.errors import DataError, MissingExtraError
from groundup.text_files.inputs import STDIN, Compression, Source

_ZSTD_CHUNK_BYTES = 1 << 16


class OpenSource(NamedTuple):
    """`stream` gives the text, `raw` tells how far the file itself has been read."""

    stream: IO[bytes]
    raw: IO[bytes]


@contextlib.contextmanager
def open_source(source: Source, compression: Compression | None) -> Iterator[OpenSource]:
    """Open a source for reading once from its beginning."""
    if source == STDIN:
        yield OpenSource(sys.stdin.buffer, sys.stdin.buffer)
        return
    with open(source, "rb") as raw:
        if compression == "gzip":
            with gzip.open(raw) as unpacked:
                yield OpenSource(cast(IO[bytes], unpacked), raw)
        elif compression == "zstd":
            with io.BufferedReader(_ZstdReader(raw), _ZSTD_CHUNK_BYTES) as buffered:
                yield OpenSource(buffered, raw)
        else:
            yield OpenSource(raw, raw)


def map_file(source: Source) -> mmap.mmap | None:
    """The file in memory without a copy; None for what cannot be mapped, such as a pipe."""
    # Asked before it is opened: a pipe can be opened only once, since its writer leaves when a
    # reader does.
    if not size_of(source):
        return None
    with open(source, "rb") as file:
        try:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):
            return None
    if hasattr(mapped, "madvise"):
        mapped.madvise(mmap.MADV_SEQUENTIAL)
    return mapped


def size_of(source: Source) -> int | None:
    """How many bytes the file has, or None where that is not known beforehand."""
    if source == STDIN:
        return None
    status = os.stat(source)
    return status.st_size if stat.S_ISREG(status.st_mode) else None


@contextlib.contextmanager
def explained_errors(source: Source) -> Iterator[None]:
    """Turn what goes wrong while reading `source` into a DataError that names it."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, _ZstdDamage) as error:
        raise DataError(
            f"{source} is damaged or cut short and cannot be unpacked ({error}); fetch it again"
        ) from error
    except OSError as error:
        raise DataError(f"{source} cannot be read: {error.strerror or error}") from error


class _ZstdDamage(Exception):
    pass


class _ZstdReader(io.RawIOBase):
    """Frames one after another. zstandard's own reader takes a cut frame for the end; we do not."""

    def __init__(self, raw: IO[bytes]) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise MissingExtraError("reading .zst files", "zstd") from error
        self._raw = raw
        self._new_frame = zstandard.ZstdDecompressor().decompressobj
        self._damage = zstandard.ZstdError
        self._frame: Any = None
        self._packed = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        view = memoryview(target).cast("B")
        while not self._ready:
            if not self._unpack_more():
                return 0
        count = min(len(view), len(self._ready))
        view[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _unpack_more(self) -> bool:
        self._packed = self._packed or self._raw.read(_ZSTD_CHUNK_BYTES)
        if not self._packed:
            if self._frame is not None:
                raise _ZstdDamage("the last frame is incomplete")
            return False
        self._frame = self._frame or self._new_frame()
        try:
            self._ready = memoryview(self._frame.decompress(self._packed))
        except self._damage as error:
            raise _ZstdDamage(error) from error
        self._packed = self._frame.unused_data
        if self._frame.eof:
            self._frame = None
        return True
