"""What metrics.jsonl says: numbers as columns, so that a run of a million lines fits in memory,
and the events between them. `metrics_file` reads the file.
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
# Too large for any metric of a run that has not diverged.
_LIMIT = 1e30


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
            self.num_skipped_at_end += 1
            if len(self.reasons) < _MAX_REASONS:
                self.reasons[self.num_lines - 1] = str(record.get("reason", ""))[:500]
        else:
            self.num_skipped_at_end = 0
        texts = record.get("samples")
        if isinstance(texts, list):
            shown = [text[:_MAX_SAMPLE_CHARACTERS] for text in texts[:16] if isinstance(text, str)]
            self.samples += [Sample(self.last_step, tuple(shown))] if shown else []
            del self.samples[:-_MAX_SAMPLES]

    def column(self, name: str) -> "array[float]":
        """The metric of every line; empty if no line has it."""
        return self.columns.get(name, array("d"))

    def indices(self, name: str) -> list[int]:
        """The lines in which a metric is a finite number."""
        return [index for index, value in enumerate(self.column(name)) if math.isfinite(value)]

    def values(self, name: str) -> list[float]:
        """The finite values of a metric, in order."""
        return list(filter(math.isfinite, self.column(name)))

    def at(self, name: str, index: int | None) -> float | None:
        """A metric of one line; None where it has none."""
        if index is None or name not in self.columns:
            return None
        value = self.columns[name][index]
        return value if math.isfinite(value) else None

    def step_of(self, index: int) -> int:
        """The step of a line, counted from 0; its own number where it names none."""
        step = self.at("step", index)
        return index + 1 if step is None else int(step)

    @property
    def last_step(self) -> int:
        """The step of the newest line; 0 while it has none."""
        return self.step_of(self.num_lines - 1) if self.num_lines else 0

    def last(self, name: str) -> float | None:
        """The newest value of a metric."""
        return next(filter(math.isfinite, reversed(self.column(name))), None)

    def lowest(self, name: str) -> tuple[float, int] | None:
        """The least value of a metric and the step it was first reached at."""
        index = self._lowest_index(name)
        return None if index is None else (self.column(name)[index], self.step_of(index))

    def at_lowest(self, name: str, by: str) -> float | None:
        """A metric as it was in the line where another one was least."""
        return self.at(name, self._lowest_index(by))

    def at_end(self, name: str) -> float | None:
        """The mean of the last twentieth of a metric that jitters."""
        values = self.values(name)
        last = values[-max(1, len(values) // 20) :]
        return sum(last) / len(last) if last else None

    def typical(self, name: str) -> float | None:
        """The median without the first line, which holds compilation and warm-up."""
        values = self.values(name)
        return statistics.median(values[1:] or values) if values else None

    def _lowest_index(self, name: str) -> int | None:
        column = self.column(name)
        return min(self.indices(name), key=lambda index: column[index], default=None)


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The object that a line holds; None for a line that is torn or damaged."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def as_float(value: Any) -> float:
    """NaN for what is not a number, or one that only a run which diverged can have."""
    # Python's integers may be too large for a float.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < _LIMIT else math.nan
