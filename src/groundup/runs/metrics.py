"""Lines of metrics.jsonl as columns of numbers, so that a run of a million lines fits in memory.

How a file is read, whole or as it grows, and what else its lines say is left to the readers.
"""

import json
import math
from array import array
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy

_MAX_FIGURES = 64


@dataclass
class FigureColumns:
    """The figures of all lines so far."""

    limit: ClassVar[float] = math.inf
    """Numbers that are this large count as none."""

    num_lines: int = 0
    columns: dict[str, "array[float]"] = field(default_factory=dict)
    """A number for every line; NaN where the line has no such figure."""

    def add(self, record: dict[str, Any]) -> None:
        """Take one line in."""
        for name, column in self.columns.items():
            column.append(as_float(record.get(name), self.limit))
        for name, value in record.items():
            if name not in self.columns and is_number(value) and len(self.columns) < _MAX_FIGURES:
                self.columns[name] = array("d", [math.nan]) * self.num_lines
                self.columns[name].append(as_float(value, self.limit))
        self.num_lines += 1

    def column(self, name: str) -> "array[float]":
        """The figure of every line; empty if no line has it."""
        return self.columns.get(name, array("d"))

    def last(self, name: str) -> float | None:
        """The newest value of a figure."""
        column = reversed(self.column(name))
        return next((value for value in column if math.isfinite(value)), None)

    def lowest(self, name: str) -> tuple[float, int] | None:
        """The least value of a figure and the step it was reached at."""
        place = self.lowest_place(name)
        return None if place is None else (self.column(name)[place], self.step_of(place))

    def lowest_place(self, name: str) -> int | None:
        """The line with the least value of a figure, the first of them if there are several."""
        values = numpy.array(self.column(name))
        present = numpy.flatnonzero(numpy.isfinite(values))
        return int(present[values[present].argmin()]) if len(present) else None

    def step_of(self, place: int) -> int:
        """The step of a line, counted from 0; its own number where it names none."""
        step = self.columns["step"][place] if "step" in self.columns else math.nan
        return int(step) if math.isfinite(step) else place + 1


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The object that a line holds; None for a line that is torn or damaged."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_float(value: Any, limit: float = math.inf) -> float:
    """NaN for what is no number, or none below the limit."""
    if type(value) is not float:
        try:
            value = float(value) if is_number(value) else math.nan
        except OverflowError:
            return math.nan
    return value if abs(value) < limit else math.nan
