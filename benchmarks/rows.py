"""What a benchmark asks, and how the answers of many processes become one row of its result."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

OURS = "groundup"

# Stands in a measure's targets for whichever rival did best.
BEST_RIVAL = "the best rival"

Json = dict[str, Any]

_CLOSE = 4.0
# What a job tells of its size, and how much of that is one in the unit.
_RATES = {"MB/s": ("num_bytes", 1e6), "tokens/s": ("num_tokens", 1)}


@dataclass(frozen=True)
class Measure:
    """One figure that a job gives under this name; a rate is made from its seconds."""

    name: str
    title: str
    unit: str = "MB/s"
    headline: bool = True
    # How many times better than whom, and what the figure itself should not pass, or reach.
    targets: dict[str, float] = field(default_factory=dict)
    limit: float | None = None
    least: float | None = None


@dataclass(frozen=True)
class Task:
    """One question put to several tools, each on `cores` cores."""

    name: str
    title: str
    job: Json
    rivals: tuple[str, ...]
    measures: tuple[Measure, ...]
    cores: int = 1
    # Whether close rivals get more rounds.
    looks_twice: bool = True
    # Whether times do not drift, so that one run of ours a round serves all rivals.
    is_steady: bool = False
    # What a slow tool does instead, so that it ends today: changes to the job and words about them.
    lighter: dict[str, tuple[Json, str]] = field(default_factory=dict)


class Verdict(NamedTuple):
    """Whether a rival's output is what ours is, in words for the table."""

    agrees: bool
    words: str


def make_row(
    task: Task,
    measure: Measure,
    results: dict[str, list[Json]],
    pairs: dict[str, list[tuple[Json, Json]]],
    verdicts: dict[str, Verdict],
    problems: dict[str, str],
) -> Json:
    """One measure of a task for all tools: medians, spreads, ratios, whether the output is ours.

    `pairs` has for each rival and round the outcomes of ours and of the rival that ran beside it.
    """
    tools: Json = {}
    for tool, outcomes in results.items():
        note = task.lighter[tool][1] if tool in task.lighter else None
        cell: Json = {"note": note} if note else {}
        if tool in problems:
            cell["error"] = problems[tool]
        values = [value for one in outcomes if (value := _value(one, measure)) is not None]
        if values:
            cell |= {
                "median": statistics.median(values),
                "low": min(values),
                "high": max(values),
                "values": values,
                "cpu_seconds": _median(one["cpu_seconds"].get(measure.name) for one in outcomes),
                "peak_bytes": _median(one.get("peak_bytes") for one in outcomes),
                "extra": outcomes[0].get("extra", {}),
            }
        if measure.unit == "tokens/s":
            cell |= _fractions(cell, measure.name)
        if tool in verdicts:
            cell |= {"agrees": verdicts[tool].agrees, "agreement": verdicts[tool].words}
        neighbours = pairs.get(tool, [])
        ratios = [ratio for a, b in neighbours if (ratio := _ratio(a, b, measure)) is not None]
        if ratios:
            cell |= {
                "ratio": statistics.median(ratios),
                "ratios": ratios,
                "cpu_ratio": _median(_cpu_ratio(a, b, measure) for a, b in neighbours),
            }
        tools[tool] = cell
    return {
        "name": f"{task.name}.{measure.name}",
        "title": f"{task.title}{', ' if measure.title else ''}{measure.title}",
        "unit": measure.unit,
        "cores": task.cores,
        "headline": measure.headline,
        "targets": measure.targets,
        "limit": measure.limit,
        "least": measure.least,
        "valid": all(verdict.agrees for verdict in verdicts.values()) and OURS not in problems,
        "tools": tools,
    }


def is_close(pairs: list[tuple[Json, Json]], measures: Iterable[Measure]) -> bool:
    """Whether a rival came near enough to ours in any time for a second look."""
    times = [measure for measure in measures if measure.unit != "MB"]
    ratios = [_ratio(a, b, measure) for a, b in pairs for measure in times]
    return any(ratio is not None and ratio < _CLOSE for ratio in ratios)


def _value(outcome: Json, measure: Measure) -> float | None:
    seconds = outcome["seconds"].get(measure.name)
    if measure.unit in _RATES:
        amount, one = _RATES[measure.unit]
        return float(outcome[amount] / seconds / one) if seconds else None
    if measure.unit == "MB":
        taken = outcome["memory_bytes"].get(measure.name)
        return None if taken is None else float(taken / 1e6)
    return None if seconds is None else float(seconds)


def _ratio(ours: Json, theirs: Json, measure: Measure) -> float | None:
    """How many times better ours did; a growth (unit x) speaks for itself."""
    if measure.unit == "x":
        return None
    a, b = _value(ours, measure), _value(theirs, measure)
    if not a or not b:
        return None
    return a / b if measure.unit in _RATES else b / a


def _cpu_ratio(ours: Json, theirs: Json, measure: Measure) -> float | None:
    """The same by processor time, which other people's work on the machine disturbs less."""
    a, b = (one["cpu_seconds"].get(measure.name) for one in (ours, theirs))
    amount = next(amount for amount, _ in _RATES.values() if amount in ours)
    return (b / theirs[amount]) / (a / ours[amount]) if a and b else None


def _fractions(cell: Json, name: str) -> Json:
    """The fractions of the device's best that were used, where that is known: of its operations
    (model flops utilization), and of the bytes that its memory reads."""
    extra = cell.get("extra", {})
    found = {}
    if best := extra.get("peak_flops_per_second"):
        found["mfu"] = cell["median"] * extra["flops_per_token"] / best
    if best := extra.get("peak_bytes_per_second"):
        found["bandwidth"] = cell["median"] * extra["bytes_per_token"][name] / best
    return found


def _median(values: Iterable[float | None]) -> float | None:
    known: list[float] = [value for value in values if value is not None]
    return statistics.median(known) if known else None
