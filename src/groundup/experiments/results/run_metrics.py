"""metrics.jsonl of a run, read whole although somebody may still be writing it.

Figures become columns, so that a run of many lines stays small. A torn last line, damaged lines
and a missing file are remembered as notes, never raised.
"""

import json
import math
import statistics
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_MAX_FIGURES = 64
_MAX_SAMPLE_CHARACTERS = 4_000
_LARGEST_FIGURE = 1e30


@dataclass(frozen=True)
class Sample:
    """What the model wrote after a step, one text for each prompt."""

    step: int
    texts: tuple[str, ...]


@dataclass
class Metrics:
    """What a metrics file says."""

    num_lines: int = 0
    num_skipped: int = 0
    """Steps that were not taken, because their loss or gradients were not finite."""
    columns: dict[str, "array[float]"] = field(default_factory=dict)
    """A number for every line; NaN where the line has none."""
    samples: list[Sample] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ends_without_loss: bool = False
    """Was the newest training loss no number?"""
    num_skipped_at_end: int = 0

    def add(self, record: dict[str, Any]) -> None:
        """Take one line in."""
        for name, column in self.columns.items():
            column.append(as_float(record.get(name)))
        for name, value in record.items():
            if name not in self.columns and len(self.columns) < _MAX_FIGURES and _is_number(value):
                self.columns[name] = array("d", [math.nan]) * self.num_lines
                self.columns[name].append(as_float(value))
        self.num_lines += 1
        if "loss" in record:
            self.ends_without_loss = not math.isfinite(as_float(record["loss"]))
        is_skipped = record.get("skipped") is True
        self.num_skipped += is_skipped
        self.num_skipped_at_end = self.num_skipped_at_end + 1 if is_skipped else 0
        texts = record.get("samples")
        if isinstance(texts, list) and texts:
            shown = tuple(str(text)[:_MAX_SAMPLE_CHARACTERS] for text in texts[:16])
            self.samples.append(Sample(self.step_of(self.num_lines - 1), shown))

    def column(self, name: str) -> "array[float]":
        """The figure of every line; empty if no line has it."""
        return self.columns.get(name, array("d"))

    def places(self, name: str) -> list[int]:
        """The lines in which a figure is a finite number."""
        return [place for place, value in enumerate(self.column(name)) if math.isfinite(value)]

    def values(self, name: str) -> list[float]:
        """The finite values of a figure, in order."""
        return [value for value in self.column(name) if math.isfinite(value)]

    def last(self, name: str) -> float | None:
        column = reversed(self.column(name))
        return next((value for value in column if math.isfinite(value)), None)

    def lowest(self, name: str) -> tuple[float, int] | None:
        """The least value of a figure and the step it was reached at."""
        column = self.column(name)
        place = min(self.places(name), key=column.__getitem__, default=None)
        return None if place is None else (column[place], self.step_of(place))

    def at_end(self, name: str) -> float | None:
        """The mean of the last twentieth of a figure that jitters."""
        values = self.values(name)
        last = values[-max(1, len(values) // 20) :]
        return sum(last) / len(last) if last else None

    def typical(self, name: str) -> float | None:
        """The median without the first line, which holds compilation and warm-up."""
        values = self.values(name)
        return statistics.median(values[1:] or values) if values else None

    def step_of(self, place: int) -> int:
        step = self.column("step")[place] if "step" in self.columns else math.nan
        return int(step) if math.isfinite(step) else place + 1


def read_metrics(path: Path) -> Metrics:
    """Everything that can be read of a metrics file."""
    metrics = Metrics()
    if not path.is_file():
        metrics.notes.append(f"there is no {path.name} yet")
        return metrics
    damaged: list[int] = []
    for number, line in _lines(path, metrics):
        record = _parse(line)
        if record is not None:
            metrics.add(record)
        elif line.endswith(b"\n"):
            damaged.append(number)
        else:
            metrics.notes.append(f"the last line of {path.name} is unfinished and was left out")
    if damaged:
        verb = "line is" if len(damaged) == 1 else "lines are"
        metrics.notes.append(
            f"{len(damaged):,} {verb} no JSON object and left out (first: line {damaged[0]:,})"
        )
    if not metrics.num_lines:
        metrics.notes.append(f"{path.name} holds no figures yet")
    if metrics.num_skipped:
        steps = "step was" if metrics.num_skipped == 1 else "steps were"
        metrics.notes.append(f"{metrics.num_skipped:,} {steps} skipped: not finite")
    return metrics


def as_float(value: Any) -> float:
    """NaN for what is no number, or too large for any figure of a run that has not diverged."""
    return float(value) if _is_number(value) and abs(value) < _LARGEST_FIGURE else math.nan


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _lines(path: Path, metrics: Metrics) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except OSError as error:
        metrics.notes.append(f"{path.name} cannot be read: {error.strerror}")


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
