"""A stream that can be read in any sizes, out of an iterator of bytes."""

import io
from collections.abc import Iterator
from typing import IO, Any


def stream_of(chunks: Iterator[bytes | memoryview]) -> IO[bytes]:
    """A buffered stream of what `chunks` yields."""
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
        view = memoryview(target).cast("B")
        count = min(len(view), len(self._ready))
        view[:count], self._ready = self._ready[:count], self._ready[count:]
        return count
