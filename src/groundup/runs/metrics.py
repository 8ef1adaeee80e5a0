"""What metrics.jsonl says: numbers as columns, so that a run of a million lines fits in memory,
and the events between them. `metrics_file` reads the file.
"""

import json
import math
import statistics
from array import array
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy

_MAX_COLUMNS = 64
_MAX_REASONS = 200
_MAX_SAMPLES = 400
_MAX_SAMPLE_CHARACTERS = 4_000
# Too large for any metric of a run that has not diverged.
_LIMIT = 1e30
# A spike lies above the median of so many lines before it by eight of their median distances from
# it, and by a tenth of it.
_WINDOW = 25
_DEVIATIONS = 8.0
_LEAST_RISE = 0.1
_MAX_SPIKES = 200


class Spike(NamedTuple):
    """The highest of neighbouring losses that the lines before did not lead to expect."""

    step: int
    loss: float
    expected: float


class Sample(NamedTuple):
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
        column, present = self.column(name), self.indices(name)
        return min(present, key=lambda index: column[index]) if present else None

    def step_of(self, index: int) -> int:
        """The step of a line, counted from 0; its own number where it names none."""
        step = self.at("step", index)
        return index + 1 if step is None else int(step)

    @property
    def last_step(self) -> int:
        """The step of the newest line; 0 while it has none."""
        return self.step_of(self.num_lines - 1) if self.num_lines else 0

    def indices(self, name: str) -> list[int]:
        """The lines in which a metric is a finite number."""
        is_present = numpy.isfinite(numpy.array(self.column(name)))
        found: list[int] = numpy.flatnonzero(is_present).tolist()
        return found

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

    def find_spikes(self) -> list[Spike]:
        """Where the loss jumps out of its own recent course; a plateau after a jump is no spike."""
        indices = [index for index in self.indices("loss") if index not in self.reasons]
        losses = numpy.array(self.column("loss"))[indices]
        if len(losses) <= _WINDOW:
            return []
        windows = numpy.lib.stride_tricks.sliding_window_view(losses, _WINDOW)[:-1]
        expected = numpy.median(windows, axis=1)
        distance = numpy.median(numpy.abs(windows - expected[:, None]), axis=1)
        allowed = numpy.maximum(_DEVIATIONS * distance, _LEAST_RISE * numpy.abs(expected))
        found = numpy.flatnonzero(losses[_WINDOW:] - expected > allowed)
        spikes: list[Spike] = []
        for run in numpy.split(found, numpy.flatnonzero(numpy.diff(found) > 1) + 1):
            if len(run):
                top = int(run[losses[_WINDOW + run].argmax()])
                step = self.step_of(indices[_WINDOW + top])
                spikes.append(Spike(step, float(losses[_WINDOW + top]), float(expected[run[0]])))
        return spikes[:_MAX_SPIKES]

    def _add_events(self, record: dict[str, Any]) -> None:
        index = self.num_lines - 1
        if "loss" in record:
            self.ends_without_loss = math.isnan(as_float(record["loss"]))
        self.num_skipped_at_end = 0 if record.get("skipped") is not True else self._skip(record)
        texts = record.get("samples")
        if isinstance(texts, list):
            shown = [text[:_MAX_SAMPLE_CHARACTERS] for text in texts[:16] if isinstance(text, str)]
            if shown:
                self.samples.append(Sample(self.step_of(index), tuple(shown)))
            if len(self.samples) > _MAX_SAMPLES:
                # Every other one goes, the newest stays: they remain spread over the run.
                self.samples = self.samples[:0:-2][::-1]

    def _skip(self, record: dict[str, Any]) -> int:
        self.num_skipped += 1
        if len(self.reasons) < _MAX_REASONS:
            self.reasons[self.num_lines - 1] = str(record.get("reason", ""))[:500]
        return self.num_skipped_at_end + 1


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
