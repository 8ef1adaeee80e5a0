"""metrics.jsonl on disk: read whole, as it grows, or its end alone.

The file may be torn at its end, cut by a resume, replaced or deleted at any time; damage is counted
and noted, never raised. What its lines say is `metrics`.
"""

import contextlib
import os
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

from groundup.files import open_plain_file, read_tail
from groundup.runs.metrics import Metrics, parse_line

# No record is that long: what is read of a longer line is damaged, and what follows it is sound.
_MAX_LINE_BYTES = 16 * 2**20


def read_metrics(path: Path) -> Metrics:
    """Everything that can be read of a metrics file, with notes about what cannot."""
    reader = MetricsReader(path.resolve())
    with reader.reading() as metrics:
        pass
    if (record := parse_line(reader.unfinished)) is not None:
        metrics.add(record)
    elif reader.unfinished.strip():
        metrics.notes.append(f"the last line of {path.name} is unfinished and was left out")
    if metrics.num_damaged:
        metrics.notes.append(f"damaged lines were left out: {metrics.num_damaged:,}")
    if not metrics.num_lines:
        metrics.notes.append(f"{path.name} has no metrics yet, or cannot be read")
    if metrics.num_skipped:
        metrics.notes.append(f"skipped steps, whose loss was not finite: {metrics.num_skipped:,}")
    return metrics


class MetricsReader:
    """Follows one metrics file: each reading parses what was added since the last one.

    Safe to call from several threads.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._forget()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Metrics]:
        """What the whole lines of the file say up to now; nobody adds to it within the block."""
        with self._lock:
            with open_plain_file(self._path) as file:
                if file is None:
                    self._forget()
                else:
                    self._follow(file)
            yield self._metrics

    @property
    def version(self) -> str:
        """Changes when lines that were read before are no longer what the file says."""
        return f"{self._inode:x}-{zlib.crc32(self._first_line):x}"

    def _forget(self, inode: int = 0) -> None:
        self._metrics = Metrics()
        self._inode = inode
        self._offset = 0
        self._first_line = b""
        self.unfinished = b""
        """What follows the last line end."""

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
    """The last evaluation and the last 50 lines, found without reading the whole file."""
    tail = read_tail(path, 2**21)
    evaluated = tail.rfind(b'"validation_loss"')
    lines = tail.rsplit(b"\n", 51)[:-1]
    lines.insert(0, tail[tail.rfind(b"\n", 0, evaluated) + 1 : tail.find(b"\n", evaluated)])
    newest = Metrics()
    for record in filter(None, map(parse_line, lines)):
        newest.add(record)
    return newest
