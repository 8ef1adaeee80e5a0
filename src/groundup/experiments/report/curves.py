"""Learning curves of groups as charts: thinned, smoothed where they jitter, averaged over seeds.

A curve of one run is its line; of several, the mean with its 95% band and the runs as thin lines.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from groundup.experiments.report.charts import NUM_STYLES, Chart, Line, Point, y_range_of
from groundup.experiments.report.text import show_loss
from groundup.experiments.results.groups import Group
from groundup.experiments.results.run_result import RunResult
from groundup.experiments.results.statistics import confidence_interval

Axis = Literal["step", "tokens", "wall_seconds"]
AXES: dict[Axis, str] = {"step": "Steps", "tokens": "Tokens", "wall_seconds": "Wall clock"}

_NUM_POINTS = 4_000
_MOST_POINTS, _FEWEST_POINTS = 240, 40
_MOST_GROUPS_WITH_JITTER = 3
# Student's t makes the band of two seeds twelve times their distance: it would hide the curves.
_FEWEST_SEEDS_OF_A_BAND = 3
_SMOOTHING = 40
_JITTERING = frozenset({"loss", "gradient_norm", "tokens_per_second", "mfu"})
_MOST_DESCRIBED = 8


def learning_curves(groups: Sequence[Group], metric: str, name: str) -> dict[Axis, Chart]:
    """The curves of a metric along every axis; nothing where no run has the metric."""
    shown = [group for group in groups if any(run.metrics.indices(metric) for run in group.runs)]
    num_runs = sum(len(group.runs) for group in shown)
    num_points = max(_FEWEST_POINTS, min(_MOST_POINTS, _NUM_POINTS // max(1, num_runs)))
    styles = assign_styles(groups)
    shows_jitter = len(shown) <= _MOST_GROUPS_WITH_JITTER
    traces = {
        group.label: [_trace(run, metric, num_points) for run in group.runs] for group in shown
    }
    charts: dict[Axis, Chart] = {}
    for axis in AXES:
        lines = [
            _line(group, styles[group.label], traces[group.label], axis, shows_jitter)
            for group in shown
        ]
        lines = [line for line in lines if line.points]
        if lines:
            charts[axis] = _chart(lines, axis, name)
    return charts


def assign_styles(groups: Sequence[Group]) -> dict[str, int | None]:
    """A style for the best groups, by label; those that diverged are marked as such instead."""
    styles: dict[str, int | None] = {}
    for group in sorted(groups, key=lambda group: not group.is_winner):
        taken = sum(style is not None for style in styles.values())
        is_diverged = group.num_diverged == len(group.runs)
        styles[group.label] = None if is_diverged or taken >= NUM_STYLES else taken
    return styles


class _Trace(NamedTuple):
    """A metric of one run: (line of the file, value), smoothed and thinned; and as it jitters."""

    run: RunResult
    points: list[tuple[int, float]]
    jitter: list[tuple[int, float]]


def _trace(run: RunResult, metric: str, num_points: int) -> _Trace:
    indices = run.metrics.indices(metric)
    column = run.metrics.column(metric)
    values = [column[index] for index in indices]
    jitter: list[tuple[int, float]] = []
    if metric in _JITTERING and len(values) > _SMOOTHING:
        jitter = [(indices[i], values[i]) for i in thin_to_extremes(values, num_points)]
        values = smooth(values, len(values) // _SMOOTHING)
    points = [(indices[i], values[i]) for i in thin_evenly(len(values), num_points)]
    return _Trace(run, points, jitter)


def _along(trace: _Trace, axis: Axis, points: Sequence[tuple[int, float]]) -> tuple[Point, ...]:
    metrics = trace.run.metrics
    column = metrics.column(axis)

    def position(index: int) -> float:
        if axis == "step":
            return float(metrics.step_of(index))
        return column[index] if column else math.nan

    located = ((position(index), y) for index, y in points)
    return tuple(point for point in located if math.isfinite(point[0]))


def _line(
    group: Group, style: int | None, traces: Sequence[_Trace], axis: Axis, shows_jitter: bool
) -> Line:
    lines = [_along(trace, axis, trace.points) for trace in traces]
    points, threads = lines[0], tuple(lines)
    band: tuple[tuple[float, float, float], ...] = ()
    if len(traces) == 1:
        jitter = _along(traces[0], axis, traces[0].jitter) if shows_jitter else ()
        threads = (jitter,) if jitter else ()
    else:
        counted = {run.path for run in group.counted or group.runs}
        averaged = _average([trace for trace in traces if trace.run.path in counted], axis)
        if len(averaged[0]) > 1:
            points, band = averaged
    return Line(
        group.label,
        points,
        style,
        band=band,
        threads=threads,
        is_diverged=group.num_diverged == len(group.runs),
        has_markers=len(points) == 1,
    )


def _average(
    traces: Sequence[_Trace], axis: Axis
) -> tuple[tuple[Point, ...], tuple[tuple[float, float, float], ...]]:
    """The mean of several runs and its interval, at the first one's steps that all have reached."""
    steps = [[float(t.run.metrics.step_of(index)) for index, _ in t.points] for t in traces]
    paths = [_along(trace, axis, trace.points) for trace in traces]
    if not all(paths) or any(len(a) != len(b) for a, b in zip(steps, paths, strict=True)):
        return (), ()
    low, high = max(s[0] for s in steps), min(s[-1] for s in steps)
    shared = [step for step in steps[0] if low <= step <= high]
    columns = [
        np.array([np.interp(shared, own, [point[i] for point in path]) for i in (0, 1)])
        for own, path in zip(steps, paths, strict=True)
    ]
    line, band = [], []
    for index in range(len(shared)):
        x = sum(float(column[0][index]) for column in columns) / len(columns)
        interval = confidence_interval([float(column[1][index]) for column in columns])
        assert interval is not None
        line.append((x, interval.mean))
        if interval.half_width is not None and len(columns) >= _FEWEST_SEEDS_OF_A_BAND:
            band.append((x, interval.low, interval.high))
    return tuple(line), tuple(band)


def _chart(lines: Sequence[Line], axis: Axis, name: str) -> Chart:
    ends = "; ".join(
        f"{line.label} {'diverges at' if line.is_diverged else 'ends at'} "
        f"{show_loss(line.points[-1][1])}"
        for line in lines[:_MOST_DESCRIBED]
    )
    more = f"; and {len(lines) - _MOST_DESCRIBED} more" if len(lines) > _MOST_DESCRIBED else ""
    x_name, unit = {"step": "steps", "tokens": "tokens"}.get(axis, "seconds"), 1.0
    if axis == "wall_seconds":
        end = max(line.points[-1][0] for line in lines)
        for told, seconds in (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)):
            if end >= 2 * seconds:
                x_name, unit = told, seconds
                break
    return Chart(
        title=f"{name} by {AXES[axis].lower()}",
        x_name=x_name,
        y_name=name,
        lines=tuple(_scaled(line, unit) for line in lines),
        description=f"{name} by {AXES[axis].lower()}: {ends}{more}.",
        y_range=y_range_of(lines),
    )


def _scaled(line: Line, unit: float) -> Line:
    """The line with its x in another unit."""
    return replace(
        line,
        points=tuple((x / unit, y) for x, y in line.points),
        band=tuple((x / unit, low, high) for x, low, high in line.band),
        threads=tuple(tuple((x / unit, y) for x, y in thread) for thread in line.threads),
    )


def smooth(values: Sequence[float], reach: int) -> list[float]:
    """The mean over up to `reach` neighbours on either side; the first value stays as it is.

    Towards the beginning, where losses fall steeply, a mean must not lean to one side. At the end
    it may: there a single value would say less than the ones before it.
    """
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    before = np.minimum(reach, index)
    after = np.minimum(before, len(values) - 1 - index)
    means = (sums[index + after + 1] - sums[index - before]) / (before + after + 1)
    return [float(mean) for mean in means]


def thin_evenly(count: int, num_points: int) -> list[int]:
    """At most `num_points` indices out of `count`, the first and the last among them."""
    if count <= num_points:
        return list(range(count))
    return [round(number * (count - 1) / (num_points - 1)) for number in range(num_points)]


def thin_to_extremes(values: Sequence[float], num_points: int) -> list[int]:
    """About `num_points` indices: the extremes of every stretch, so that no spike is lost."""
    count, num_spans = len(values), max(1, num_points // 2)
    if count <= num_points:
        return list(range(count))
    kept = {0, count - 1}
    for number in range(num_spans):
        span = range(number * count // num_spans, (number + 1) * count // num_spans)
        kept.add(min(span, key=values.__getitem__))
        kept.add(max(span, key=values.__getitem__))
    return sorted(kept)
