"""The contents of metrics.jsonl: numbers in columns, so that a million lines fit in memory, and
events such as samples and skipped steps. `metrics_file` reads the file.
"""

import json
import math
import statistics
from array import array
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_MAX_COLUMNS = 64
_MAX_REASONS = 200
_MAX_SAMPLES = 400
_MAX_SAMPLE_CHARACTERS = 4_000
# Larger values only occur in runs that have diverged.
_LIMIT = 1e30


class Sample(NamedTuple):
    """Text generated after a step, for each prompt."""

    step: int
    texts: tuple[str, ...]


@dataclass
class Metrics:
    """The metrics in the lines read so far."""

    num_lines: int = 0
    columns: dict[str, "array[float]"] = field(default_factory=dict)
    """One number per line; NaN if the line does not have the metric."""
    num_skipped: int = 0
    """Steps skipped because the loss or gradients were not finite."""
    reasons: dict[int, str] = field(default_factory=dict)
    """Why a step was skipped, by line index."""
    ends_without_loss: bool = False
    """Whether the newest training loss is not finite."""
    samples: list[Sample] = field(default_factory=list)
    num_damaged: int = 0
    """Lines that are not a JSON object."""
    notes: list[str] = field(default_factory=list)
    """Problems with the file, one sentence each."""

    def add(self, record: dict[str, Any]) -> None:
        """Add one line."""
        for name, value in record.items():
            is_new = name not in self.columns and len(self.columns) < _MAX_COLUMNS
            if is_new and not math.isnan(as_float(value)):
                self.columns[name] = array("d", [math.nan]) * self.num_lines
        for name, column in self.columns.items():
            column.append(as_float(record.get(name)))
        self.num_lines += 1
        if "loss" in record:
            self.ends_without_loss = math.isnan(as_float(record["loss"]))
        if record.get("skipped") is True:
            self.num_skipped += 1
            if len(self.reasons) < _MAX_REASONS:
                self.reasons[self.num_lines - 1] = str(record.get("reason", ""))[:500]
        texts = record.get("samples")
        if isinstance(texts, list):
            shown = [text[:_MAX_SAMPLE_CHARACTERS] for text in texts[:16] if isinstance(text, str)]
            self.samples += [Sample(self.last_step, tuple(shown))] if shown else []
            del self.samples[:-_MAX_SAMPLES]

    def column(self, name: str) -> "array[float]":
        """Return a metric for every line; empty if no line has it."""
        return self.columns.get(name, array("d"))

    def indices(self, name: str) -> list[int]:
        """Return the indices of the lines in which a metric is finite."""
        return [index for index, value in enumerate(self.column(name)) if math.isfinite(value)]

    def values(self, name: str) -> list[float]:
        """Return the finite values of a metric, in order."""
        return list(filter(math.isfinite, self.column(name)))

    def at(self, name: str, index: int | None) -> float | None:
        """Return a metric of one line; None if it is missing or not finite."""
        if index is None or name not in self.columns:
            return None
        value = self.columns[name][index]
        return value if math.isfinite(value) else None

    def step_of(self, index: int) -> int:
        """Return the step of the line at `index`; if it has none, the line number."""
        step = self.at("step", index)
        return index + 1 if step is None else int(step)

    @property
    def last_step(self) -> int:
        """The step of the newest line; 0 if there are none."""
        return self.step_of(self.num_lines - 1) if self.num_lines else 0

    def last(self, name: str) -> float | None:
        """Return the newest value of a metric."""
        return next(filter(math.isfinite, reversed(self.column(name))), None)

    def lowest(self, name: str) -> tuple[float, int] | None:
        """Return the lowest value of a metric, and the step that first reached it."""
        index = self._lowest_index(name)
        return None if index is None else (self.column(name)[index], self.step_of(index))

    def at_lowest(self, name: str, by: str) -> float | None:
        """Return a metric from the line where another one is lowest."""
        return self.at(name, self._lowest_index(by))

    def at_end(self, name: str) -> float | None:
        """Return the mean of the last 5% of a noisy metric."""
        values = self.values(name)
        last = values[-max(1, len(values) // 20) :]
        return sum(last) / len(last) if last else None

    def typical(self, name: str) -> float | None:
        """Return the median without the first line, which includes compilation and warm-up."""
        values = self.values(name)
        return statistics.median(values[1:] or values) if values else None

    def _lowest_index(self, name: str) -> int | None:
        column = self.column(name)
        return min(self.indices(name), key=lambda index: column[index], default=None)


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Parse a line; None if it is truncated or damaged."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def as_float(value: Any) -> float:
    """Convert a value to float; NaN if it is not a number, or is from a run that diverged."""
    # An int may be too large for a float.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < _LIMIT else math.nan
