"""Opening sources: files, pipes and standard input, with gzip, zstd and xz undone on the way.

Damage that shows while reading becomes a DataError that names the file.
"""

import contextlib
import functools
import gzip
import io
import lzma
import mmap
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple, cast

import numpy as np

from groundup.errors import DataError, MissingExtraError
from groundup.text_files.inputs import STDIN, Compression, OnError, Source
from groundup.text_files.remote import (
    RemoteFile,
    explained_remote_errors,
    open_remote,
    remote_size,
)

_CHUNK_BYTES = 1 << 16
# Only a single document can be longer; it may be longer than memory.
_LONGEST_READ_BYTES = 64 << 20
# Four bytes can stand for a block of 128 kB: unpacked at once, this much gives 64 MB at most.
_STEP_BYTES = 1 << 11
# The strongest setting of xz needs 65 MB to unpack; a file may ask for gigabytes.
_XZ_MEMORY_BYTES = 256 << 20
# zstd packs large corpora with windows beyond its own limit: this is the longest it has.
_ZSTD_WINDOW_BYTES = 1 << 31


class OpenSource(NamedTuple):
    """`stream` gives the text, `raw` tells how far the file itself has been read."""

    stream: IO[bytes]
    raw: IO[bytes]


@contextlib.contextmanager
def open_source(source: Source, compression: Compression | None) -> Iterator[OpenSource]:
    """Open a source for reading once from its beginning.

    source: a file, or "-" for standard input.
    compression: how it is packed, if it is.
    """
    if source == STDIN:
        yield OpenSource(sys.stdin.buffer, sys.stdin.buffer)
        return
    with open_remote(source) if isinstance(source, RemoteFile) else open(source, "rb") as raw:
        if compression == "gzip":
            with gzip.open(raw) as unpacked:
                yield OpenSource(cast(IO[bytes], unpacked), raw)
        elif compression is not None:
            with io.BufferedReader(_FrameReader(raw, compression), _CHUNK_BYTES) as buffered:
                yield OpenSource(buffered, raw)
        else:
            yield OpenSource(raw, raw)


def read_window(file: int, begin: int, end: int, source: Source) -> memoryview:
    """The bytes of a regular file from `begin` up to `end`, read, or mapped where they are many.

    What is read stays what it was. A mapped file that shrinks while its bytes are looked at ends
    the process, with the error that it would be otherwise.
    """
    if end - begin > _LONGEST_READ_BYTES:
        return _map_window(file, begin, end, source)
    # Left as the system gives it: zeroing it first would cost as much as reading.
    window = np.empty(end - begin, np.uint8).data
    filled = 0
    while filled < len(window):
        count = os.preadv(file, [window[filled:]], begin + filled)
        if count == 0:
            check_length(file, end, source)
        filled += count
    return window


def check_length(file: int, num_bytes: int, source: Source) -> None:
    """Make sure that a file that had `num_bytes` when it was opened has not shrunk since."""
    if os.fstat(file).st_size < num_bytes:
        raise DataError(_shrunk(source))


def _map_window(file: int, begin: int, end: int, source: Source) -> memoryview:
    from groundup._native import watch_mapping

    check_length(file, end, source)
    aligned = begin - begin % mmap.ALLOCATIONGRANULARITY
    mapped = mmap.mmap(file, end - aligned, access=mmap.ACCESS_READ, offset=aligned)
    if hasattr(mapped, "madvise"):
        mapped.madvise(mmap.MADV_SEQUENTIAL)
    watch_mapping(mapped, os.fsencode(f"error: {_shrunk(source)}\n"))
    return memoryview(mapped)[begin - aligned :]


def release_pages(data: bytes | memoryview) -> None:
    """Give the pages of a mapped file back to the system: looked at again, they are read again."""
    mapped = data.obj if isinstance(data, memoryview) else None
    if isinstance(mapped, mmap.mmap) and hasattr(mapped, "madvise") and data:
        begin, end = (np.frombuffer(part, np.uint8).ctypes.data for part in (mapped, data))
        begin = end - begin
        aligned = begin - begin % mmap.PAGESIZE
        mapped.madvise(mmap.MADV_DONTNEED, aligned, begin - aligned + len(data))


def parts_released(data: memoryview, part_bytes: int) -> Iterator[memoryview]:
    """Yield `data` in parts, the pages of each given back when the next is asked for.

    data: mapped bytes.
    part_bytes: the size of a part.
    """
    for begin in range(0, len(data), part_bytes):
        part = data[begin : begin + part_bytes]
        yield part
        release_pages(part)


def size_of(source: Source) -> int | None:
    """How many bytes the file has, or None where that is not known beforehand."""
    if source == STDIN:
        return None
    if isinstance(source, RemoteFile):
        return remote_size(source)
    status = os.stat(source)
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def find_size(source: Source, on_error: OnError = "stop") -> int | None:
    """`size_of` with its errors explained; 0 of what cannot be looked at and may be skipped."""
    try:
        with explained_errors(source):
            return size_of(source)
    except UnreadableError:
        if on_error == "stop":
            raise
        return 0


@contextlib.contextmanager
def explained_errors(source: Source) -> Iterator[None]:
    """Turn what goes wrong while reading `source` into a DataError that names it."""
    is_remote = isinstance(source, RemoteFile)
    remote = explained_remote_errors(str(source), UnreadableError)
    try:
        with remote if is_remote else contextlib.nullcontext():
            yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UnreadableError(
            f"{source} is damaged or cut short and cannot be unpacked ({error}); fetch it again"
        ) from error
    except OSError as error:
        raise UnreadableError(f"{source} cannot be read: {error.strerror or error}") from error


def _shrunk(source: Source) -> str:
    return (
        f"{source} became shorter while it was being read; run the command again when nothing "
        f"writes to it"
    )


class UnreadableError(DataError):
    """A file without text that can be read, which a corpus of many may do without."""


class EmptyFileError(UnreadableError):
    """A file without documents; of many it is passed over in any case."""


class _FrameReader(io.RawIOBase):
    """zstd's or xz's frames one after another. zstandard's own reader takes a cut frame for the end
    and lzma's has no bound on its memory; this one does not and has."""

    def __init__(self, raw: IO[bytes], compression: Compression) -> None:
        self._raw = raw
        self._new_frame, self._damage = _unpacker_of(compression)
        self._frame: Any = None
        self._packed = memoryview(b"")
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
        self._packed = self._packed or memoryview(self._raw.read(_CHUNK_BYTES))
        if not self._packed:
            if self._frame is not None:
                raise EOFError("the last frame is incomplete")
            return False
        self._frame = self._frame or self._new_frame()
        try:
            step = self._packed[:_STEP_BYTES]
            self._ready = memoryview(self._frame.decompress(step))
        except self._damage as error:
            raise EOFError(error) from error
        self._packed = self._packed[len(step) - len(self._frame.unused_data) :]
        if self._frame.eof:
            self._frame = None
        return True


def _unpacker_of(compression: Compression) -> tuple[Callable[[], Any], type[Exception]]:
    """What makes the unpacker of a frame, and what it raises for damage."""
    if compression == "xz":
        unpacker = functools.partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, _XZ_MEMORY_BYTES)
        return unpacker, lzma.LZMAError
    try:
        import zstandard
    except ImportError as error:
        raise MissingExtraError("reading .zst files", "zstd") from error
    zstd = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    return zstd.decompressobj, zstandard.ZstdError
