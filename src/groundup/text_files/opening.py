"""Open sources (files, pipes, URLs and standard input) and decompress them.

Errors while reading become an `UnreadableError` that names the source.
"""

import contextlib
import gzip
import io
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from typing import IO, Any, cast

from groundup.errors import GroundupError, MissingExtraError
from groundup.text_files.documents import STDIN, Source, UnreadableError

_CHUNK_BYTES = 1 << 20
# Four bytes can encode a block of 128 kB, so decompressing this much yields at most 64 MB.
_STEP_BYTES = 1 << 11
# Decompressing xz's highest preset takes 65 MB, but a file may demand gigabytes.
_XZ_MEMORY_BYTES = 256 << 20
_ZSTD_WINDOW_BYTES = 1 << 31


@contextlib.contextmanager
def open_source(source: Source) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Yield the decompressed stream of a source and its raw file; explains errors."""
    with explained_errors(source), contextlib.ExitStack() as stack:
        if source.path == STDIN:
            yield sys.stdin.buffer, sys.stdin.buffer
            return
        raw = stream = stack.enter_context(_open_raw(source))
        if source.compression == "gzip":
            stream = cast(IO[bytes], stack.enter_context(gzip.open(raw)))
        elif source.compression is not None:
            stream = stack.enter_context(stream_of(_decompress(raw, source.compression)))
        yield stream, raw
        if not source.is_remote:
            check_unchanged(source, raw.fileno())


def check_unchanged(source: Source, file: int) -> None:
    """Raise UnreadableError if a regular file has changed since it was found."""
    if (source.size, source.stamp) not in (stamp_of(os.fstat(file)), (None, None)):
        raise UnreadableError(
            f"{source} changed while it was in use, or differs between machines; run the command "
            f"again once nothing writes to it"
        )


def stamp_of(status: os.stat_result) -> tuple[int | None, str | None]:
    """Return size and modification time of a regular file; None for pipes and devices."""
    if not stat.S_ISREG(status.st_mode):
        return None, None
    return status.st_size, str(status.st_mtime_ns)


@contextlib.contextmanager
def explained_errors(source: Source | str) -> Iterator[None]:
    """Turn exceptions in reading a source or URL into an error that names it."""
    try:
        yield
    except GroundupError:
        raise
    except Exception as error:
        is_remote = isinstance(source, str) or source.is_remote
        if isinstance(error, ImportError) and str(source).startswith(("http", "hf")):
            raise MissingExtraError(f"reading {source}", "remote") from error
        if not is_remote and not isinstance(error, OSError | EOFError | zlib.error):
            raise
        reason = getattr(error, "strerror", None) or error or type(error)
        raise UnreadableError(
            f"{source} cannot be read: {reason}; check the name, or download the file again"
        ) from error


def _open_raw(source: Source) -> IO[bytes]:
    if not source.is_remote:
        return open(source.path, "rb", buffering=_CHUNK_BYTES)
    import fsspec

    system, path = fsspec.core.url_to_fs(source.path)
    return cast(IO[bytes], io.BufferedReader(system.open(path, "rb"), _CHUNK_BYTES))


def _decompress(raw: IO[bytes], compression: str) -> Iterator[bytes]:
    """Yield the contents of zstd or xz frames. Unlike zstandard's own reader this detects truncated
    frames, and unlike lzma's it limits memory."""
    damage: type[Exception] = lzma.LZMAError
    unpacker: Any = None
    if compression == "zstd":
        try:
            import zstandard
        except ImportError as error:
            raise MissingExtraError("reading .zst files", "zstd") from error
        damage = zstandard.ZstdError
        unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    frame: Any = None
    packed = memoryview(b"")
    while packed := packed or memoryview(raw.read(_CHUNK_BYTES)):
        if frame is None:
            new = lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY_BYTES)
            frame = unpacker.decompressobj() if unpacker else new
        step = packed[:_STEP_BYTES]
        try:
            yield frame.decompress(step)
        except damage as error:
            raise EOFError(error) from error
        packed = packed[len(step) - len(frame.unused_data) :]
        frame = None if frame.eof else frame
    if frame is not None:
        raise EOFError("the last frame is incomplete")


def stream_of(chunks: Iterator[bytes | memoryview]) -> IO[bytes]:
    """Wrap an iterator of chunks in a buffered stream."""
    return io.BufferedReader(_ChunkStream(chunks), 1 << 16)


class _ChunkStream(io.RawIOBase):
    def __init__(self, chunks: Iterator[bytes | memoryview]) -> None:
        self._chunks = chunks
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        while not self._ready:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._ready = memoryview(chunk)
        count = min(len(target), len(self._ready))
        target[:count], self._ready = self._ready[:count], self._ready[count:]
        return count
