"""What metrics.jsonl says: numbers as columns, so that a run of a million lines fits in memory,
and the events between them, spikes of the loss among them. `metrics_file` reads the file.
"""

import json
import math
import statistics
from array import array
from dataclasses import dataclass, field
from typing import Any

import numpy

_MAX_COLUMNS = 64
_MAX_REASONS = 200
_MAX_SAMPLES = 400
_MAX_SAMPLE_CHARACTERS = 4_000
# Too large for any metric of a run that has not diverged.
_LIMIT = 1e30
# How a spike of the loss is told from noise, see `SpikeDetector`.
_MEMORY = 0.95
_NUM_LINES_BEFORE_JUDGING = 20
_DEVIATIONS = 8.0
_LEAST_RISE = 0.1
_MAX_SPIKES = 200


@dataclass
class Spike:
    """A rise of one or several lines above what the lines before led to expect."""

    step: int
    loss: float
    expected: float


class SpikeDetector:
    """Finds where a loss jumps out of its own recent course, with no look ahead.

    It holds a running mean of the loss and of its distance from that mean. A loss is a spike if it
    lies above the mean by eight of the usual distances and by a tenth of the mean. Spikes move the
    mean only as far as an ordinary line could, so that a plateau after a jump becomes the new
    course in time and is then no spike any more.
    """

    def __init__(self) -> None:
        self.spikes: list[Spike] = []
        self.num_spikes = 0
        self._mean = 0.0
        self._distance = 0.0
        self._num_lines = 0
        self._is_in_spike = False

    def add(self, step: int, loss: float) -> None:
        """Judge the next loss; those that are not finite are passed over."""
        if not math.isfinite(loss):
            return
        self._num_lines += 1
        if self._num_lines == 1:
            self._mean = loss
            return
        rise = loss - self._mean
        allowed = max(_DEVIATIONS * self._distance, _LEAST_RISE * abs(self._mean))
        is_spike = self._num_lines > _NUM_LINES_BEFORE_JUDGING and rise > allowed
        if is_spike:
            self._note(step, loss)
        self._is_in_spike = is_spike
        moved = min(allowed, rise)
        self._mean += (1 - _MEMORY) * moved
        self._distance = _MEMORY * self._distance + (1 - _MEMORY) * abs(moved)

    def _note(self, step: int, loss: float) -> None:
        if not self._is_in_spike:
            self.num_spikes += 1
            if len(self.spikes) < _MAX_SPIKES:
                self.spikes.append(Spike(step, loss, self._mean))
        elif self.spikes and loss > self.spikes[-1].loss:
            self.spikes[-1].step, self.spikes[-1].loss = step, loss


@dataclass(frozen=True)
class Sample:
    """What the model generated after a step, one text for each prompt."""

    step: int
    texts: tuple[str, ...]


@dataclass
class Metrics:
    """What the lines of a metrics file have said so far."""

    num_lines: int = 0
    columns: dict[str, "array[float]"] = field(default_factory=dict)
    """A number for every line; NaN where the line has no such metric."""
    num_skipped: int = 0
    """Steps that were not taken, because their loss or gradients were not finite."""
    num_skipped_at_end: int = 0
    reasons: dict[int, str] = field(default_factory=dict)
    """Why the step of a line was skipped, by the number of the line."""
    ends_without_loss: bool = False
    """Was the newest training loss not a number?"""
    samples: list[Sample] = field(default_factory=list)
    spikes: SpikeDetector = field(default_factory=SpikeDetector)
    num_damaged: int = 0
    """Lines that are not a JSON object."""
    notes: list[str] = field(default_factory=list)
    """What was odd about the file, a sentence each."""

    def add(self, record: dict[str, Any]) -> None:
        """Take one line in."""
        for name, column in self.columns.items():
            column.append(as_float(record.get(name)))
        for name, value in record.items():
            if name not in self.columns and is_number(value) and len(self.columns) < _MAX_COLUMNS:
                self.columns[name] = array("d", [math.nan]) * self.num_lines
                self.columns[name].append(as_float(value))
        self.num_lines += 1
        self._add_events(record)

    def column(self, name: str) -> "array[float]":
        """The metric of every line; empty if no line has it."""
        return self.columns.get(name, array("d"))

    def last(self, name: str) -> float | None:
        """The newest value of a metric."""
        column = reversed(self.column(name))
        return next((value for value in column if math.isfinite(value)), None)

    def lowest(self, name: str) -> tuple[float, int] | None:
        """The least value of a metric and the step it was reached at."""
        index = self.lowest_index(name)
        return None if index is None else (self.column(name)[index], self.step_of(index))

    def lowest_index(self, name: str) -> int | None:
        """The line with the least value of a metric, the first of them if there are several."""
        values = numpy.array(self.column(name))
        present = numpy.flatnonzero(numpy.isfinite(values))
        return int(present[values[present].argmin()]) if len(present) else None

    def step_of(self, index: int) -> int:
        """The step of a line, counted from 0; its own number where it names none."""
        step = self.columns["step"][index] if "step" in self.columns else math.nan
        return int(step) if math.isfinite(step) else index + 1

    @property
    def last_step(self) -> int:
        """The step of the newest line; 0 while it has none."""
        return self.step_of(self.num_lines - 1) if self.num_lines else 0

    def indices(self, name: str) -> list[int]:
        """The lines in which a metric is a finite number."""
        return [index for index, value in enumerate(self.column(name)) if math.isfinite(value)]

    def values(self, name: str) -> list[float]:
        """The finite values of a metric, in order."""
        return [value for value in self.column(name) if math.isfinite(value)]

    def at(self, name: str, index: int | None) -> float | None:
        """A metric of one line; None where it has none."""
        if index is None or name not in self.columns:
            return None
        value = self.columns[name][index]
        return value if math.isfinite(value) else None

    def at_lowest(self, name: str, by: str) -> float | None:
        """A metric as it was in the line where another one was least."""
        return self.at(name, self.lowest_index(by))

    def at_end(self, name: str) -> float | None:
        """The mean of the last twentieth of a metric that jitters."""
        values = self.values(name)
        last = values[-max(1, len(values) // 20) :]
        return sum(last) / len(last) if last else None

    def typical(self, name: str) -> float | None:
        """The median without the first line, which holds compilation and warm-up."""
        values = self.values(name)
        return statistics.median(values[1:] or values) if values else None

    def _add_events(self, record: dict[str, Any]) -> None:
        index = self.num_lines - 1
        step = self.step_of(index)
        if "loss" in record:
            self.ends_without_loss = math.isnan(as_float(record["loss"]))
        if record.get("skipped") is True:
            self.num_skipped += 1
            self.num_skipped_at_end += 1
            if len(self.reasons) < _MAX_REASONS:
                self.reasons[index] = str(record.get("reason", ""))[:500]
        else:
            self.num_skipped_at_end = 0
            self.spikes.add(step, as_float(record.get("loss")))
        texts = record.get("samples")
        if isinstance(texts, list):
            shown = [text[:_MAX_SAMPLE_CHARACTERS] for text in texts[:16] if isinstance(text, str)]
            if shown:
                self.samples.append(Sample(step, tuple(shown)))
            if len(self.samples) > _MAX_SAMPLES:
                # Every other one goes, the newest stays: they remain spread over the run.
                self.samples = self.samples[:0:-2][::-1]


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The object that a line holds; None for a line that is torn or damaged."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_float(value: Any) -> float:
    """NaN for what is not a number, or one that only a run which diverged can have."""
    if type(value) is not float:
        try:
            value = float(value) if is_number(value) else math.nan
        except OverflowError:
            return math.nan
    return value if abs(value) < _LIMIT else math.nan
