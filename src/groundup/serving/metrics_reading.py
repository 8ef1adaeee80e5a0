"""metrics.jsonl read as it grows: each call parses what was added since the last one.

The file may be torn at its end, cut by a resume, replaced or deleted at any time. What a plot
needs is `thinning`.
"""

import contextlib
import math
import os
import threading
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from groundup.runs.metrics import FigureColumns, as_float, parse_line
from groundup.serving.loss_spikes import SpikeDetector
from groundup.serving.run_reading import open_plain_file, read_tail
from groundup.serving.thinning import thin

_BLOCK_BYTES = 2**20
_MAX_LINE_BYTES = 16 * 2**20
_MAX_SAMPLES = 400
_MAX_SAMPLE_CHARACTERS = 4_000
_MAX_SKIPPED_SHOWN = 200
_WHOLE_NUMBERS = frozenset({"step", "tokens", "memory_bytes"})


@dataclass
class Metrics(FigureColumns):
    """What a metrics file has said so far."""

    num_damaged: int = 0
    reasons: dict[int, str] = field(default_factory=dict)
    """Why the step of a line was skipped, by the number of the line."""
    num_skipped: int = 0
    samples: list[tuple[int, list[str]]] = field(default_factory=list)
    spikes: SpikeDetector = field(default_factory=SpikeDetector)

    def add(self, record: dict[str, Any]) -> None:
        """Take one line in."""
        super().add(record)
        self._add_events(record)

    def line(self, index: int) -> dict[str, Any]:
        """The figures of a line as they were written, without its texts."""
        line: dict[str, Any] = {}
        for name, column in self.columns.items():
            value = column[index]
            if math.isfinite(value):
                line[name] = int(value) if name in _WHOLE_NUMBERS else value
        if index in self.reasons:
            line["skipped"] = True
            line["reason"] = self.reasons[index]
        return line

    def _add_events(self, record: dict[str, Any]) -> None:
        index = self.num_lines - 1
        step = self.step_of(index)
        if record.get("skipped"):
            self.num_skipped += 1
            if len(self.reasons) < _MAX_SKIPPED_SHOWN:
                self.reasons[index] = str(record.get("reason", ""))[:500]
        elif "loss" in self.columns:
            self.spikes.add(step, self.columns["loss"][index])
        texts = record.get("samples")
        if isinstance(texts, list):
            cut = [text[:_MAX_SAMPLE_CHARACTERS] for text in texts[:16] if isinstance(text, str)]
            self.samples.append((step, cut))
            if len(self.samples) > _MAX_SAMPLES:
                # Every other one goes, the newest stays: they remain spread over the run.
                self.samples = self.samples[:0:-2][::-1]


class MetricsReader:
    """Follows one metrics file; safe to call from several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._forget()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Metrics]:
        """What the file says up to now; nobody adds to it within the block."""
        with self._lock:
            with open_plain_file(self._path) as file:
                if file is None:
                    self._forget()
                else:
                    self._follow(file)
            yield self._metrics

    def lines_after(
        self, after: int, version: str | None = None, limit: int | None = None
    ) -> dict[str, Any]:
        """The lines from number `after` on, thinned to about `limit`, as the page asks for them.

        The version changes when lines that were given before are no longer what the file says;
        then, and if there are fewer lines than `after`, the answer begins anew.
        """
        with self.reading() as metrics:
            total = metrics.num_lines
            is_restarted = after > total or (after > 0 and version not in (None, self._version))
            first = 0 if is_restarted else after
            kept = thin(metrics.columns, first, total, limit, metrics.reasons)
            return {
                "lines": [metrics.line(index) for index in kept],
                "next": total,
                "version": self._version,
                "restarted": is_restarted,
            }

    def _forget(self) -> None:
        self._metrics = Metrics()
        self._inode = 0
        self._offset = 0
        self._first_line = b""
        self._version = ""

    def _follow(self, file: int) -> None:
        found = os.fstat(file)
        is_other = found.st_ino != self._inode or found.st_size < self._offset
        if is_other or os.pread(file, len(self._first_line), 0) != self._first_line:
            self._forget()
            self._inode = found.st_ino
        rest = b""
        position = self._offset
        while len(rest) < _MAX_LINE_BYTES and (block := os.pread(file, _BLOCK_BYTES, position)):
            position += len(block)
            *lines, rest = (rest + block).split(b"\n")
            self._take(lines)
        if not self._version and self._first_line:
            self._version = f"{self._inode:x}-{zlib.crc32(self._first_line):x}"

    def _take(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self._first_line = self._first_line or line + b"\n"
            self._offset += len(line) + 1
            if not line.strip():
                continue
            record = parse_line(line)
            if record is None:
                self._metrics.num_damaged += 1
            else:
                self._metrics.add(record)


@dataclass(frozen=True)
class Newest:
    """What the end of a metrics file says, which is all that a list of runs shows."""

    figures: dict[str, float]
    longest_gap: float | None
    """Seconds that recent lines lay apart at most."""


def read_newest(path: Path) -> Newest:
    """The newest value of each figure, found without reading the whole file."""
    records = _last_records(read_tail(path, 2**16)) or _last_records(read_tail(path, 2**22))
    figures: dict[str, float] = {}
    for record in records:
        figures.update(_finite_figures(record))
    if records and "validation_loss" not in figures:
        figures = {**_newest_validation(read_tail(path, 2**22)), **figures}
    clock = [value for record in records if (value := _finite_figures(record).get("wall_seconds"))]
    gaps = [later - earlier for earlier, later in pairwise(clock)]
    return Newest(figures, max(gaps, default=None))


def _last_records(tail: bytes) -> list[dict[str, Any]]:
    lines = tail.split(b"\n")[:-1][-50:]
    return [record for line in lines if (record := parse_line(line)) is not None]


def _newest_validation(tail: bytes) -> dict[str, float]:
    place = tail.rfind(b'"validation_loss"')
    if place < 0:
        return {}
    line = tail[tail.rfind(b"\n", 0, place) + 1 : tail.find(b"\n", place)]
    return _finite_figures(parse_line(line) or {})


def _finite_figures(record: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in record.items() if math.isfinite(as_float(value))}
