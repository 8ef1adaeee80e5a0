"""Reading metrics.jsonl: all of it, as it grows, or only its end.

The file may have an incomplete last line, and be truncated by a resume, replaced or deleted at any
time. Damage is counted and noted, and never raises. `metrics` interprets the lines.
"""

import contextlib
import os
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

from groundup.files import open_plain_file, read_tail
from groundup.runs.metrics import Metrics, parse_line

# Longer than any record; the reader treats longer lines as damaged pieces of this size.
_MAX_LINE_BYTES = 16 * 2**20


def read_metrics(path: Path) -> Metrics:
    """Read as much as possible of a metrics file, with notes on any damage."""
    reader = MetricsReader(path.resolve())
    with reader.reading() as metrics:
        pass
    if (record := parse_line(reader.unfinished)) is not None:
        metrics.add(record)
    elif reader.unfinished.strip():
        metrics.notes.append(f"the last line of {path.name} is incomplete and was skipped")
    if metrics.num_damaged:
        metrics.notes.append(f"damaged lines were skipped: {metrics.num_damaged:,}")
    if not metrics.num_lines:
        metrics.notes.append(f"{path.name} has no metrics yet, or cannot be read")
    if metrics.num_skipped:
        metrics.notes.append(f"steps skipped (non-finite loss/gradients): {metrics.num_skipped:,}")
    return metrics


class MetricsReader:
    """Follows a metrics file: each `reading` parses only the lines added since. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._forget()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Metrics]:
        """Yield the metrics of all complete lines; they do not change inside the block."""
        with self._lock:
            with open_plain_file(self._path) as file:
                if file is None:
                    self._forget()
                else:
                    self._follow(file)
            yield self._metrics

    @property
    def version(self) -> str:
        """Changes when the file is replaced, so that lines read before are no longer valid."""
        return f"{self._inode:x}-{zlib.crc32(self._first_line):x}"

    def _forget(self, inode: int = 0) -> None:
        self._metrics = Metrics()
        self._inode = inode
        self._offset = 0
        self._first_line = b""
        self.unfinished = b""
        """The bytes after the last newline."""

    def _follow(self, file: int) -> None:
        found = os.fstat(file)
        is_other = found.st_ino != self._inode or found.st_size < self._offset
        if is_other or os.pread(file, len(self._first_line), 0) != self._first_line:
            self._forget(found.st_ino)
        self.unfinished = b""
        with open(file, "rb", closefd=False) as stream:
            stream.seek(self._offset)
            while line := stream.readline(_MAX_LINE_BYTES):
                if not line.endswith(b"\n") and len(line) < _MAX_LINE_BYTES:
                    self.unfinished = line
                    break
                self._first_line = self._first_line or line
                self._offset += len(line)
                if (record := parse_line(line)) is not None:
                    self._metrics.add(record)
                elif line.strip():
                    self._metrics.num_damaged += 1


def read_newest(path: Path) -> Metrics:
    """Read the last evaluation and the last 50 lines, without reading the whole file."""
    tail = read_tail(path, 2**21)
    evaluated = tail.rfind(b'"validation_loss"')
    lines = tail.rsplit(b"\n", 51)[:-1]
    lines.insert(0, tail[tail.rfind(b"\n", 0, evaluated) + 1 : tail.find(b"\n", evaluated)])
    newest = Metrics()
    for record in filter(None, map(parse_line, lines)):
        newest.add(record)
    return newest
