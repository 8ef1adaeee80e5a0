"""Opening sources: files, pipes, addresses and standard input, unpacked on the way.

Whatever goes wrong while reading becomes an `UnreadableError` that names the source.
"""

import contextlib
import functools
import gzip
import io
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from typing import IO, Any, NamedTuple, cast

from groundup.errors import GroundupError, MissingExtraError
from groundup.text_files.documents import STDIN, Source, UnreadableError

_CHUNK_BYTES = 1 << 20
# Four bytes can stand for a block of 128 kB: unpacked at once, this much gives 64 MB at most.
_STEP_BYTES = 1 << 11
# The strongest setting of xz needs 65 MB to unpack; a file may ask for gigabytes.
_XZ_MEMORY_BYTES = 256 << 20
_ZSTD_WINDOW_BYTES = 1 << 31


class OpenSource(NamedTuple):
    """`stream` gives the text, `raw` tells how far the file itself has been read."""

    stream: IO[bytes]
    raw: IO[bytes]


@contextlib.contextmanager
def open_source(source: Source) -> Iterator[OpenSource]:
    """Open a source for reading from its beginning; errors are explained."""
    with explained_errors(source), contextlib.ExitStack() as stack:
        if source.path == STDIN:
            yield OpenSource(sys.stdin.buffer, sys.stdin.buffer)
            return
        raw = stack.enter_context(_open_raw(source))
        stream: Any = raw
        if source.compression == "gzip":
            stream = stack.enter_context(gzip.open(raw))
        elif source.compression is not None:
            frames = _FrameReader(raw, source.compression)
            stream = stack.enter_context(io.BufferedReader(frames, _CHUNK_BYTES))
        yield OpenSource(stream, raw)
        if not source.is_remote:
            check_unchanged(source, raw.fileno())


def check_unchanged(source: Source, file: int) -> None:
    """Raise UnreadableError if a regular file differs from what was found at first."""
    size, stamp = stamp_of(os.fstat(file))
    if (source.size, source.stamp) not in ((size, stamp), (None, None)):
        raise UnreadableError(
            f"{source} changed while it was in use, or differs between machines; run the command "
            f"again when nothing writes to it"
        )


def stamp_of(status: os.stat_result) -> tuple[int | None, str | None]:
    """Size and time of a regular file, which tell that it is unchanged; None for pipes and such."""
    if not stat.S_ISREG(status.st_mode):
        return None, None
    return status.st_size, str(status.st_mtime_ns)


@contextlib.contextmanager
def explained_errors(source: Source | str) -> Iterator[None]:
    """Turn what goes wrong with a source or an address into an error that names it."""
    is_remote = isinstance(source, str) or source.is_remote
    try:
        yield
    except GroundupError:
        raise
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UnreadableError(
            f"{source} is damaged or cut short ({error}); fetch it again"
        ) from error
    except FileNotFoundError as error:
        raise UnreadableError(f"{source} does not exist; check the name") from error
    except ImportError as error:
        if str(source).startswith(("http", "hf")):
            raise MissingExtraError(f"reading {source}", "remote") from error
        raise UnreadableError(f"{source} cannot be read: {error}") from error
    except OSError as error:
        raise UnreadableError(f"{source} cannot be read: {error.strerror or error}") from error
    except Exception as error:
        if not is_remote:
            raise
        raise UnreadableError(f"{source} cannot be read: {error or type(error)}") from error


def _open_raw(source: Source) -> IO[bytes]:
    if not source.is_remote:
        is_packed = source.compression is not None
        return cast(IO[bytes], open(source.path, "rb", buffering=_CHUNK_BYTES if is_packed else 0))
    import fsspec

    system, path = fsspec.core.url_to_fs(source.path)
    return cast(IO[bytes], io.BufferedReader(system.open(path, "rb"), _CHUNK_BYTES))


class _FrameReader(io.RawIOBase):
    """zstd's or xz's frames one after another. zstandard's own reader takes a cut frame for the end
    and lzma's has no bound on its memory; this one does not and has."""

    def __init__(self, raw: IO[bytes], compression: str) -> None:
        self._raw = raw
        self._damage: type[Exception] = lzma.LZMAError
        self._new_frame: Any = functools.partial(
            lzma.LZMADecompressor, lzma.FORMAT_XZ, _XZ_MEMORY_BYTES
        )
        if compression == "zstd":
            try:
                import zstandard
            except ImportError as error:
                raise MissingExtraError("reading .zst files", "zstd") from error
            self._damage = zstandard.ZstdError
            unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
            self._new_frame = unpacker.decompressobj
        self._frame: Any = None
        self._packed = self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        while not self._ready:
            self._packed = self._packed or memoryview(self._raw.read(_CHUNK_BYTES))
            if not self._packed:
                if self._frame is not None:
                    raise EOFError("the last frame is incomplete")
                return 0
            self._frame = self._frame or self._new_frame()
            step = self._packed[:_STEP_BYTES]
            try:
                self._ready = memoryview(self._frame.decompress(step))
            except self._damage as error:
                raise EOFError(error) from error
            self._packed = self._packed[len(step) - len(self._frame.unused_data) :]
            self._frame = None if self._frame.eof else self._frame
        view = memoryview(target).cast("B")
        count = min(len(view), len(self._ready))
        view[:count], self._ready = self._ready[:count], self._ready[count:]
        return count
