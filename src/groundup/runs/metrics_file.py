"""metrics.jsonl on disk: read whole or as it grows, its end alone, and cut for a resume.

The file may be torn at its end, cut by a resume, replaced or deleted at any time; damage is counted
and noted, never raised. What its lines say is `metrics`.
"""

import contextlib
import logging
import math
import os
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from groundup.files import atomic_path
from groundup.runs.metrics import Metrics, as_float, parse_line
from groundup.runs.plain_files import open_plain_file, read_tail

# No record is that long: what is read of a longer line is damaged, and what follows it is sound.
_MAX_LINE_BYTES = 16 * 2**20

_log = logging.getLogger(__name__)


def read_metrics(path: Path) -> Metrics:
    """Everything that can be read of a metrics file, with notes about what cannot."""
    reader = MetricsReader(path)
    with reader.reading() as metrics:
        pass
    if (record := parse_line(reader.unfinished)) is not None:
        metrics.add(record)
    elif reader.unfinished.strip():
        metrics.notes.append(f"the last line of {path.name} is unfinished and was left out")
    if metrics.num_damaged:
        metrics.notes.append(
            f"damaged lines were left out: {metrics.num_damaged:,} (first: line "
            f"{reader.first_damaged:,})"
        )
    if not metrics.num_lines:
        is_readable = not path.exists() or os.access(path, os.R_OK)
        what = "has no metrics yet" if is_readable else "cannot be read: check its permissions"
        metrics.notes.append(f"{path.name} {what}")
    if metrics.num_skipped:
        metrics.notes.append(f"skipped steps, whose loss was not finite: {metrics.num_skipped:,}")
    return metrics


class MetricsReader:
    """Follows one metrics file: each reading parses what was added since the last one.

    Safe to call from several threads.
    """

    def __init__(self, path: Path, *, follow_links: bool = True) -> None:
        self._path = path
        self._follow_links = follow_links
        self._lock = threading.Lock()
        self._forget()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Metrics]:
        """What the whole lines of the file say up to now; nobody adds to it within the block."""
        with self._lock:
            with open_plain_file(self._path, follow_links=self._follow_links) as file:
                if file is None:
                    self._forget()
                else:
                    self._follow(file)
            yield self._metrics

    def _forget(self) -> None:
        self._metrics = Metrics()
        self._inode = 0
        self._offset = 0
        self._first_line = b""
        self._num_lines = 0
        self.first_damaged = 0
        """The number of the first damaged line, counted from 1."""
        self.unfinished = b""
        """What follows the last line end."""
        self.version = ""
        """Changes when lines that were read before are no longer what the file says."""

    def _follow(self, file: int) -> None:
        found = os.fstat(file)
        is_other = found.st_ino != self._inode or found.st_size < self._offset
        if is_other or os.pread(file, len(self._first_line), 0) != self._first_line:
            self._forget()
            self._inode = found.st_ino
        self.unfinished = b""
        with open(file, "rb", closefd=False) as stream:
            stream.seek(self._offset)
            while line := stream.readline(_MAX_LINE_BYTES):
                if not line.endswith(b"\n") and len(line) < _MAX_LINE_BYTES:
                    self.unfinished = line
                    break
                self._take(line)

    def _take(self, line: bytes) -> None:
        if not self._first_line:
            self._first_line = line
            self.version = f"{self._inode:x}-{zlib.crc32(line):x}"
        self._offset += len(line)
        self._num_lines += 1
        if (record := parse_line(line)) is not None:
            self._metrics.add(record)
        elif line.strip():
            self._metrics.num_damaged += 1
            self.first_damaged = self.first_damaged or self._num_lines


@dataclass(frozen=True)
class Newest:
    """What the end of a metrics file says, which is all that a list of runs shows."""

    values: dict[str, float]
    longest_gap: float | None
    """Seconds that recent lines lay apart at most."""


def read_newest(path: Path, *, follow_links: bool = True) -> Newest:
    """The newest value of each metric, found without reading the whole file."""
    tail = read_tail(path, 2**21, follow_links=follow_links)
    evaluated = tail.rfind(b'"validation_loss"')
    lines = tail.rsplit(b"\n", 51)[:-1]
    lines.insert(0, tail[tail.rfind(b"\n", 0, evaluated) + 1 : tail.find(b"\n", evaluated)])
    values: dict[str, float] = {}
    clock: list[float] = []
    for number, record in enumerate(map(parse_line, lines)):
        found = {name: as_float(value) for name, value in (record or {}).items()}
        found = {name: value for name, value in found.items() if math.isfinite(value)}
        values |= found
        if number and "wall_seconds" in found:
            clock.append(found["wall_seconds"])
    gaps = [later - earlier for earlier, later in pairwise(clock)]
    return Newest(values, max(gaps, default=None))


def cut_metrics(path: Path, last_step: int) -> None:
    """Drop the records after `last_step`, which a resumed run writes anew, and damaged lines."""
    if not path.exists():
        return
    num_damaged = 0
    with open(path, "rb") as old, atomic_path(path) as temporary, open(temporary, "wb") as new:
        for line in filter(bytes.strip, old):
            record = parse_line(line)
            step = None if record is None else record.get("step", 0)
            if type(step) is not int or step < 0:
                num_damaged += line.endswith(b"\n")
            elif step <= last_step:
                new.write(line.rstrip(b"\n") + b"\n")
    if num_damaged:
        _log.warning("%s had damaged lines, which were dropped: %d", path, num_damaged)
