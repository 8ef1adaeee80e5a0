"""metrics.jsonl read as it grows: each call parses what was added since the last one.

Figures are kept as columns, so that a run of a million lines fits in memory. The file may be torn
at its end, cut by a resume, replaced or deleted at any time. What a plot needs is `thinning`.
"""

import contextlib
import json
import math
import os
import threading
import zlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy

from groundup.serving.loss_spikes import SpikeDetector
from groundup.serving.run_reading import open_plain_file, read_tail
from groundup.serving.thinning import thin

_BLOCK_BYTES = 2**20
_MAX_LINE_BYTES = 16 * 2**20
_MAX_FIGURES = 64
_MAX_SAMPLES = 400
_MAX_SAMPLE_CHARACTERS = 4_000
_MAX_SKIPPED_SHOWN = 200
_WHOLE_NUMBERS = frozenset({"step", "tokens", "memory_bytes"})


@dataclass
class Metrics:
    """What a metrics file has said so far."""

    num_lines: int = 0
    num_damaged: int = 0
    columns: dict[str, "array[float]"] = field(default_factory=dict)
    """A number for every line, which need not be finite; NaN where the line has no such figure."""
    reasons: dict[int, str] = field(default_factory=dict)
    """Why the step of a line was skipped, by the number of the line."""
    num_skipped: int = 0
    samples: list[tuple[int, list[str]]] = field(default_factory=list)
    spikes: SpikeDetector = field(default_factory=SpikeDetector)

    def add(self, record: dict[str, Any]) -> None:
        """Take one line in."""
        for name, column in self.columns.items():
            value = record.get(name)
            column.append(value if type(value) is float else _as_float(value))
        for name, value in record.items():
            if name not in self.columns and _is_number(value) and len(self.columns) < _MAX_FIGURES:
                self.columns[name] = array("d", [math.nan]) * self.num_lines
                self.columns[name].append(_as_float(value))
        self.num_lines += 1
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

    def last(self, name: str) -> float | None:
        """The newest value of a figure."""
        column = self.columns.get(name, array("d"))
        return next((value for value in reversed(column) if math.isfinite(value)), None)

    def least(self, name: str) -> dict[str, float | int] | None:
        """The least value of a figure and the step it was reached at."""
        values = numpy.array(self.columns.get(name, array("d")))
        present = numpy.flatnonzero(numpy.isfinite(values))
        if len(present) == 0:
            return None
        index = int(present[values[present].argmin()])
        return {"value": float(values[index]), "step": self.step_of(index)}

    def step_of(self, index: int) -> int:
        step = self.columns["step"][index] if "step" in self.columns else math.nan
        return int(step) if math.isfinite(step) else index + 1

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
            record = _parse(line)
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
    return [record for line in lines if (record := _parse(line)) is not None]


def _newest_validation(tail: bytes) -> dict[str, float]:
    place = tail.rfind(b'"validation_loss"')
    if place < 0:
        return {}
    line = tail[tail.rfind(b"\n", 0, place) + 1 : tail.find(b"\n", place)]
    return _finite_figures(_parse(line) or {})


def _finite_figures(record: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in record.items() if math.isfinite(_as_float(value))}


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _as_float(value: Any) -> float:
    """NaN for what is no number, or none that fits."""
    try:
        return float(value) if _is_number(value) else math.nan
    except OverflowError:
        return math.nan
