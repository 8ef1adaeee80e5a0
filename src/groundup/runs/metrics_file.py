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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from groundup.files import atomic_path
from groundup.runs.metrics import Metrics, as_float, parse_line
from groundup.runs.plain_files import open_plain_file, read_tail

_BLOCK_BYTES = 2**20
_MAX_LINE_BYTES = 16 * 2**20

# What stands for the step of a line that is not a record; torn is the last alone.
_DAMAGED, _TORN = -1, -2

_log = logging.getLogger(__name__)


def read_metrics(path: Path) -> Metrics:
    """Everything that can be read of a metrics file, with notes about what cannot."""
    reader = MetricsReader(path)
    with reader.reading() as metrics:
        pass
    if not path.is_file():
        metrics.notes.append(f"{path.name} does not exist yet")
    elif not os.access(path, os.R_OK):
        metrics.notes.append(f"{path.name} cannot be read: check its permissions")
    elif (record := parse_line(reader.unfinished)) is not None:
        metrics.add(record)
    elif reader.unfinished.strip():
        metrics.notes.append(f"the last line of {path.name} is unfinished and was left out")
    if metrics.num_damaged:
        metrics.notes.append(
            f"damaged lines were left out: {metrics.num_damaged:,} (first: line "
            f"{reader.first_damaged:,})"
        )
    if not metrics.num_lines and path.is_file():
        metrics.notes.append(f"{path.name} has no metrics yet")
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
        self._is_in_long_line = False
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
        rest = b""
        position = self._offset
        while block := os.pread(file, _BLOCK_BYTES, position):
            position += len(block)
            *lines, rest = (rest + block).split(b"\n")
            self._take(lines)
            if len(rest) > _MAX_LINE_BYTES:
                # No record is that long: what follows it is read all the same.
                self._offset, self._is_in_long_line, rest = position, True, b""
        self.unfinished = rest
        if not self.version and self._first_line:
            self.version = f"{self._inode:x}-{zlib.crc32(self._first_line):x}"

    def _take(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self._first_line = self._first_line or line + b"\n"
            self._offset += len(line) + 1
            self._num_lines += 1
            is_damaged, self._is_in_long_line = self._is_in_long_line, False
            record = None if is_damaged else parse_line(line)
            if record is not None:
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
    tail = read_tail(path, 2**16, follow_links=follow_links)
    records = _last_records(tail)
    if not any("validation_loss" in _finite_values(record) for record in records):
        tail = read_tail(path, 2**22, follow_links=follow_links)
        records = records or _last_records(tail)
    values: dict[str, float] = {}
    position = tail.rfind(b'"validation_loss"')
    if records and position >= 0:
        line = tail[tail.rfind(b"\n", 0, position) + 1 : tail.find(b"\n", position)]
        values = _finite_values(parse_line(line) or {})
    for record in records:
        values.update(_finite_values(record))
    clock = [value for record in records if (value := _finite_values(record).get("wall_seconds"))]
    gaps = [later - earlier for earlier, later in pairwise(clock)]
    return Newest(values, max(gaps, default=None))


def cut_metrics(path: Path, last_step: int) -> bool:
    """Drop the records after `last_step`: a resumed run writes them anew. Gives whether what is
    left lacks a record of `last_step` although lines were lost.

    Metrics are for looking and checkpoints for resuming, so damage stops nothing: the file is
    kept under another name, and its sound records are kept.
    """
    if not path.exists():
        return False
    steps = [step for _, step in _lines_with_steps(path)]
    num_damaged = steps.count(_DAMAGED)
    if num_damaged or steps.count(_TORN) or any(step > last_step for step in steps):
        with atomic_path(path) as temporary:
            with open(temporary, "wb") as file:
                for line, step in _lines_with_steps(path):
                    if 0 <= step <= last_step:
                        file.write(line.rstrip(b"\n") + b"\n")
            if num_damaged:
                _set_aside(path, num_damaged)
    return (num_damaged > 0 or _TORN in steps) and last_step not in steps


def _lines_with_steps(path: Path) -> Iterator[tuple[bytes, int]]:
    """Each line with its step; a line that is not a record has a mark instead."""
    with open(path, "rb") as file:
        for line in file:
            record = parse_line(line)
            step = _DAMAGED if record is None else record.get("step", 0)
            if record is None and not line.endswith(b"\n"):
                step = _TORN
            elif type(step) is not int or step < 0:
                step = _DAMAGED
            if line.strip():
                yield line, step


def _set_aside(path: Path, num_damaged: int) -> None:
    number = 1
    while (aside := path.with_name(f"metrics.damaged-{number}.jsonl")).exists():
        number += 1
    os.rename(path, aside)
    _log.warning(
        "%s has damaged lines (%d): set aside as %s; the run continues with the sound records",
        path,
        num_damaged,
        aside.name,
    )


def _last_records(tail: bytes) -> list[dict[str, Any]]:
    lines = tail.split(b"\n")[:-1][-50:]
    return [record for line in lines if (record := parse_line(line)) is not None]


def _finite_values(record: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in record.items() if math.isfinite(as_float(value))}
