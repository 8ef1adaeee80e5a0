"""metrics.jsonl of a run, read whole although somebody may still be writing it.

A torn last line, damaged lines and a missing file are remembered as notes, never raised.
"""

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from groundup.runs.metrics import FigureColumns, as_float, parse_line

_MAX_SAMPLE_CHARACTERS = 4_000


@dataclass(frozen=True)
class Sample:
    """What the model wrote after a step, one text for each prompt."""

    step: int
    texts: tuple[str, ...]


@dataclass
class Metrics(FigureColumns):
    """What a metrics file says."""

    # Too large for any figure of a run that has not diverged.
    limit: ClassVar[float] = 1e30

    num_skipped: int = 0
    """Steps that were not taken, because their loss or gradients were not finite."""
    samples: list[Sample] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ends_without_loss: bool = False
    """Was the newest training loss no number?"""
    num_skipped_at_end: int = 0

    def add(self, record: dict[str, Any]) -> None:
        """Take one line in."""
        super().add(record)
        if "loss" in record:
            self.ends_without_loss = math.isnan(as_float(record["loss"], self.limit))
        is_skipped = record.get("skipped") is True
        self.num_skipped += is_skipped
        self.num_skipped_at_end = self.num_skipped_at_end + 1 if is_skipped else 0
        texts = record.get("samples")
        if isinstance(texts, list) and texts:
            shown = tuple(str(text)[:_MAX_SAMPLE_CHARACTERS] for text in texts[:16])
            self.samples.append(Sample(self.step_of(self.num_lines - 1), shown))

    def places(self, name: str) -> list[int]:
        """The lines in which a figure is a finite number."""
        return [place for place, value in enumerate(self.column(name)) if math.isfinite(value)]

    def values(self, name: str) -> list[float]:
        """The finite values of a figure, in order."""
        return [value for value in self.column(name) if math.isfinite(value)]

    def at_lowest(self, name: str, by: str) -> float | None:
        """A figure as it was in the line where another one was least."""
        place = self.lowest_place(by)
        value = math.nan if place is None or name not in self.columns else self.column(name)[place]
        return value if math.isfinite(value) else None

    def at_end(self, name: str) -> float | None:
        """The mean of the last twentieth of a figure that jitters."""
        values = self.values(name)
        last = values[-max(1, len(values) // 20) :]
        return sum(last) / len(last) if last else None

    def typical(self, name: str) -> float | None:
        """The median without the first line, which holds compilation and warm-up."""
        values = self.values(name)
        return statistics.median(values[1:] or values) if values else None


def read_metrics(path: Path) -> Metrics:
    """Everything that can be read of a metrics file."""
    metrics = Metrics()
    if not path.is_file():
        metrics.notes.append(f"there is no {path.name} yet")
        return metrics
    damaged: list[int] = []
    for number, line in _lines(path, metrics):
        record = parse_line(line)
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


def _lines(path: Path, metrics: Metrics) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except OSError as error:
        metrics.notes.append(f"{path.name} cannot be read: {error.strerror}")
