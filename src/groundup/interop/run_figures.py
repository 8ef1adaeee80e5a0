"""The figures of a run at one step, from its metrics.jsonl; a run may have none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groundup.runs.metrics import as_float, parse_line


@dataclass(frozen=True)
class Evaluated:
    """What one evaluation on the validation split gave."""

    step: int
    loss: float
    bits_per_byte: float | None

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss) if self.loss < 700 else math.inf


@dataclass(frozen=True)
class RunFigures:
    """Evaluations and tokens up to a step, and training loss there."""

    tokens: int | None
    training_loss: float | None
    latest: Evaluated | None
    """The last evaluation at that step or before."""
    best: Evaluated | None
    """The lowest loss of the whole run."""


def read_figures(metrics_file: Path, step: int) -> RunFigures:
    """Read metrics.jsonl; a damaged line, or no file at all, only means fewer figures."""
    lines = metrics_file.read_bytes().splitlines() if metrics_file.is_file() else []
    records = [record for line in lines if (record := parse_line(line)) is not None]
    before = [one for one in records if _number(one, "step", math.inf) <= step]
    evaluations = [found for one in records if (found := _evaluated(one)) is not None]
    tokens = [one["tokens"] for one in before if type(one.get("tokens")) is int]
    losses = [loss for one in before if (loss := _number(one, "loss")) is not None]
    return RunFigures(
        tokens=tokens[-1] if tokens else None,
        training_loss=losses[-1] if losses else None,
        latest=max(
            (one for one in evaluations if one.step <= step), key=lambda one: one.step, default=None
        ),
        best=min(evaluations, key=lambda one: (one.loss, -one.step), default=None),
    )


def _evaluated(record: dict[str, Any]) -> Evaluated | None:
    loss, step = _number(record, "validation_loss"), record.get("step")
    if loss is None or type(step) is not int:
        return None
    return Evaluated(step, loss, _number(record, "bits_per_byte"))


def _number(record: dict[str, Any], key: str, default: Any = None) -> Any:
    value = record.get(key)
    return value if math.isfinite(as_float(value)) else default
