"""Learning curves as points: few enough to draw, smoothed where they jitter, averaged over seeds.

A curve of one run is its line; of several, the mean with its 95% band and the runs as threads.
How curves look is `curves_svg`.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from groundup.experiments.results.groups import Group
from groundup.experiments.results.run_result import RunResult
from groundup.experiments.results.statistics import confidence_interval
from groundup.runs.metrics import Metrics

Axis = Literal["step", "tokens", "wall_seconds"]
Point = tuple[float, float]

AXES: dict[Axis, str] = {"step": "Steps", "tokens": "Tokens", "wall_seconds": "Wall clock"}
NUM_SLOTS = 8

_NUM_DRAWN = 4_000
_MOST_POINTS, _FEWEST_POINTS = 240, 40
_MOST_GROUPS_WITH_JITTER = 3
# Student's t makes the band of two seeds twelve times their distance: it would hide the curves.
_FEWEST_SEEDS_OF_A_BAND = 3
_SMOOTHING_SHARE = 40
_JITTERING = frozenset({"loss", "gradient_norm", "tokens_per_second", "mfu"})


@dataclass(frozen=True)
class Curve:
    """One group, along one axis."""

    label: str
    slot: int | None
    """Which of the styles it has, from 0; None for one of the many behind."""
    line: tuple[Point, ...]
    band: tuple[tuple[float, float, float], ...] = ()
    """x with the lower and the upper end of the interval."""
    threads: tuple[tuple[Point, ...], ...] = ()
    is_diverged: bool = False
    is_open: bool = False
    """Does it go on, because the run has not ended?"""


def curves_of(groups: Sequence[Group], figure: str) -> dict[Axis, list[Curve]]:
    """The curves of a figure along every axis; groups without the figure have none."""
    drawn = [group for group in groups if any(run.metrics.indices(figure) for run in group.runs)]
    num_runs = sum(len(group.runs) for group in drawn)
    num_points = max(_FEWEST_POINTS, min(_MOST_POINTS, _NUM_DRAWN // max(1, num_runs)))
    slots = assign_slots(groups)
    shows_jitter = len(drawn) <= _MOST_GROUPS_WITH_JITTER
    by_axis: dict[Axis, list[Curve]] = {axis: [] for axis in AXES}
    for group in drawn:
        traces = [_Trace(run, figure, num_points) for run in group.runs]
        for axis, curves in by_axis.items():
            curves.append(_curve(group, slots[group.label], traces, axis, shows_jitter))
    return by_axis


def assign_slots(groups: Sequence[Group]) -> dict[str, int | None]:
    """A style for the best groups; those that diverged are marked as such instead."""
    slots: dict[str, int | None] = {}
    for group in sorted(groups, key=lambda group: not group.is_winner):
        taken = sum(slot is not None for slot in slots.values())
        is_diverged = group.num_diverged == len(group.runs)
        slots[group.label] = None if is_diverged or taken >= NUM_SLOTS else taken
    return slots


class _Trace:
    """A figure of one run: by line of the file, smoothed and thinned; and as it jitters."""

    def __init__(self, run: RunResult, figure: str, num_points: int) -> None:
        self.run = run
        metrics = run.metrics
        column = metrics.column(figure)
        places = metrics.indices(figure)
        values = [column[place] for place in places]
        self.jitter: list[tuple[int, float]] = []
        if figure in _JITTERING and len(values) > _SMOOTHING_SHARE:
            extremes = thin_to_extremes(values, num_points)
            self.jitter = [(places[index], values[index]) for index in extremes]
            values = smooth(values, len(values) // _SMOOTHING_SHARE)
        kept = thin_evenly(len(values), num_points)
        self.line = [(places[index], values[index]) for index in kept]

    def along(self, axis: Axis, points: Sequence[tuple[int, float]]) -> tuple[Point, ...]:
        located = ((_position(self.run.metrics, axis, place), y) for place, y in points)
        return tuple(point for point in located if math.isfinite(point[0]))

    def by_step(self, axis: Axis) -> dict[int, Point]:
        metrics = self.run.metrics
        located = {
            metrics.step_of(place): (_position(metrics, axis, place), y) for place, y in self.line
        }
        return {step: point for step, point in located.items() if math.isfinite(point[0])}


def _curve(
    group: Group, slot: int | None, traces: Sequence[_Trace], axis: Axis, shows_jitter: bool
) -> Curve:
    is_diverged = group.num_diverged == len(group.runs)
    is_open = any(run.outcome.state == "running" for run in group.runs)
    lines = [trace.along(axis, trace.line) for trace in traces]
    if len(traces) == 1:
        jitter = traces[0].along(axis, traces[0].jitter) if shows_jitter else ()
        threads = (jitter,) if jitter else ()
        return Curve(group.label, slot, lines[0], (), threads, is_diverged, is_open)
    counted = {run.path for run in group.counted or group.runs}
    line, band = _average([trace.by_step(axis) for trace in traces if trace.run.path in counted])
    if len(line) < 2:
        line, band = lines[0], ()
    return Curve(group.label, slot, line, band, tuple(lines), is_diverged, is_open)


def _average(
    runs: Sequence[dict[int, Point]],
) -> tuple[tuple[Point, ...], tuple[tuple[float, float, float], ...]]:
    """The mean of several runs at the steps they share, and its interval."""
    shared = sorted(set.intersection(*(set(run) for run in runs))) if runs else []
    if runs and len(shared) < 2 and all(runs):
        runs, shared = _aligned(runs)
    line, band = [], []
    for step in shared:
        x = sum(run[step][0] for run in runs) / len(runs)
        interval = confidence_interval([run[step][1] for run in runs])
        if interval is None:
            continue
        line.append((x, interval.mean))
        if interval.half_width is not None and len(runs) >= _FEWEST_SEEDS_OF_A_BAND:
            band.append((x, interval.low, interval.high))
    return tuple(line), tuple(band)


def _aligned(runs: Sequence[dict[int, Point]]) -> tuple[list[dict[int, Point]], list[int]]:
    """Runs that were measured at different steps, between their points at those of the first."""
    ends = (max(min(run) for run in runs), min(max(run) for run in runs))
    shared = [step for step in sorted(runs[0]) if ends[0] <= step <= ends[1]]
    return [{step: _between(run, step) for step in shared} for run in runs], shared


def _between(run: dict[int, Point], step: int) -> Point:
    steps = sorted(run)
    after = bisect_left(steps, step)
    if steps[after] == step:
        return run[step]
    (x_1, y_1), (x_2, y_2) = run[steps[after - 1]], run[steps[after]]
    share = (step - steps[after - 1]) / (steps[after] - steps[after - 1])
    return x_1 + share * (x_2 - x_1), y_1 + share * (y_2 - y_1)


def smooth(values: Sequence[float], reach: int) -> list[float]:
    """The mean over up to `reach` neighbours on either side; the first value stays as it is.

    Towards the beginning, where losses fall steeply, a mean must not lean to one side. At the end
    it may: there a single value would say less than the ones before it.
    """
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    smoothed = []
    for place in range(len(values)):
        before = min(reach, place)
        after = min(before, len(values) - 1 - place)
        smoothed.append((sums[place + after + 1] - sums[place - before]) / (before + after + 1))
    return smoothed


def thin_evenly(count: int, num_points: int) -> list[int]:
    """At most `num_points` places out of `count`, the first and the last among them."""
    if count <= num_points:
        return list(range(count))
    return [round(number * (count - 1) / (num_points - 1)) for number in range(num_points)]


def thin_to_extremes(values: Sequence[float], num_points: int) -> list[int]:
    """About `num_points` places: the extremes of every stretch, so that no spike is lost."""
    count, num_spans = len(values), max(1, num_points // 2)
    if count <= num_points:
        return list(range(count))
    kept = {0, count - 1}
    for number in range(num_spans):
        span = range(number * count // num_spans, (number + 1) * count // num_spans)
        kept.add(min(span, key=values.__getitem__))
        kept.add(max(span, key=values.__getitem__))
    return sorted(kept)


def _position(metrics: Metrics, axis: Axis, place: int) -> float:
    if axis == "step":
        return float(metrics.step_of(place))
    column = metrics.column(axis)
    return column[place] if column else math.nan
