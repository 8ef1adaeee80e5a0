"""Learning curves of groups as charts: thinned, smoothed where they jitter, averaged over seeds.

A curve of one run is its line; of several, the mean with its 95% band and the runs as thin lines.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from groundup.experiments.report.charts import NUM_STYLES, Chart, Line, Point, y_range_of
from groundup.experiments.report.text import show_loss
from groundup.experiments.results.groups import Group
from groundup.experiments.results.run_result import RunResult
from groundup.experiments.results.statistics import Interval, confidence_interval

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
# The first steps of a long curve would press all that follows together; a short one is shown whole.
_FARTHEST, _SHORT = 2.5, 20

Rows = np.ndarray[Any, np.dtype[np.float64]]
"""Of a metric of one run: step, tokens, wall_seconds and the value, a row for each point."""


def learning_curves(groups: Sequence[Group], metric: str, name: str) -> dict[Axis, Chart]:
    """The curves of a metric along every axis; nothing where no run has the metric."""
    shown = [group for group in groups if any(run.metrics.indices(metric) for run in group.runs)]
    num_runs = sum(len(group.runs) for group in shown)
    num_points = max(_FEWEST_POINTS, min(_MOST_POINTS, _NUM_POINTS // max(1, num_runs)))
    styles = assign_styles(groups)
    found = {run.path: _read(run, metric, num_points) for group in shown for run in group.runs}
    rows = {path: own for path, (own, _) in found.items()}
    jitter: dict[Path, Rows] = {}
    if len(shown) <= _MOST_GROUPS_WITH_JITTER:
        jitter = {path: own for path, (_, own) in found.items()}
    charts: dict[Axis, Chart] = {}
    for column, axis in enumerate(AXES):
        x_name, unit = {"step": "steps", "tokens": "tokens"}.get(axis, "seconds"), 1.0
        if axis == "wall_seconds":
            end = max((own[-1, column] for own in rows.values() if len(own)), default=0.0)
            for told, seconds in (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)):
                if end >= 2 * seconds:
                    x_name, unit = told, seconds
                    break
        lines = [_line(group, styles[group.label], rows, jitter, column, unit) for group in shown]
        lines = [line for line in lines if line.points]
        if lines:
            charts[axis] = _chart(lines, f"{name} by {AXES[axis].lower()}", x_name, name)
    return charts


def assign_styles(groups: Sequence[Group]) -> dict[str, int | None]:
    """A style for the best groups, by label; those that diverged are marked as such instead."""
    styles: dict[str, int | None] = {}
    for group in sorted(groups, key=lambda group: not group.is_winner):
        taken = sum(style is not None for style in styles.values())
        is_diverged = group.num_diverged == len(group.runs)
        styles[group.label] = None if is_diverged or taken >= NUM_STYLES else taken
    return styles


def _read(run: RunResult, metric: str, num_points: int) -> tuple[Rows, Rows]:
    """The metric, smoothed where it jitters, at evenly chosen points; and as it jitters."""
    indices = np.array(run.metrics.indices(metric), dtype=int)
    table = np.full((len(indices), 4), math.nan)
    table[:, 0] = [run.metrics.step_of(index) for index in indices]
    for column, name in enumerate(("tokens", "wall_seconds", metric), start=1):
        if values := run.metrics.column(name):
            table[:, column] = np.array(values)[indices]
    if metric not in _JITTERING or len(table) <= _SMOOTHING:
        return table[thin_evenly(len(table), num_points)], table[:0]
    jitter = table[thin_to_extremes(table[:, 3].tolist(), num_points)]
    table[:, 3] = smooth(table[:, 3].tolist(), len(table) // _SMOOTHING)
    return table[thin_evenly(len(table), num_points)], jitter


def _along(rows: Rows, column: int, unit: float) -> tuple[Point, ...]:
    finite = rows[np.isfinite(rows[:, column])]
    return tuple(zip((finite[:, column] / unit).tolist(), finite[:, 3].tolist(), strict=True))


def _line(
    group: Group,
    style: int | None,
    rows: dict[Path, Rows],
    jitter: dict[Path, Rows],
    column: int,
    unit: float,
) -> Line:
    threads = tuple(_along(rows[run.path], column, unit) for run in group.runs)
    points, band = threads[0], list[tuple[float, float, float]]()
    if len(group.runs) == 1:
        own = jitter.get(group.runs[0].path)
        threads = (_along(own, column, unit),) if own is not None and len(own) else ()
    else:
        averaged = _average([rows[run.path] for run in group.counted or group.runs], column)
        if len(averaged) > 1:
            points = tuple((x / unit, interval.mean) for x, interval in averaged)
            if len(group.counted or group.runs) >= _FEWEST_SEEDS_OF_A_BAND:
                band = [(x / unit, one.low, one.high) for x, one in averaged]
    return Line(
        group.label,
        points,
        style,
        band=tuple(band),
        threads=threads,
        is_diverged=group.num_diverged == len(group.runs),
        has_markers=len(points) == 1,
    )


def _average(runs: Sequence[Rows], column: int) -> list[tuple[float, Interval]]:
    """The mean of several runs and its interval, at the first one's steps that all have reached."""
    if not all(len(rows) and np.isfinite(rows[:, column]).all() for rows in runs):
        return []
    low, high = max(rows[0, 0] for rows in runs), min(rows[-1, 0] for rows in runs)
    shared = [step for step in runs[0][:, 0] if low <= step <= high]
    xs = np.mean([np.interp(shared, rows[:, 0], rows[:, column]) for rows in runs], axis=0)
    ys = np.array([np.interp(shared, rows[:, 0], rows[:, 3]) for rows in runs])
    intervals = map(confidence_interval, ys.T.tolist())
    return [(float(x), one) for x, one in zip(xs, intervals, strict=True) if one is not None]


def _chart(lines: Sequence[Line], title: str, x_name: str, y_name: str) -> Chart:
    ends = "; ".join(
        f"{line.label} {'diverges at' if line.is_diverged else 'ends at'} "
        f"{show_loss(line.points[-1][1])}"
        for line in lines[:_MOST_DESCRIBED]
    )
    more = f"; and {len(lines) - _MOST_DESCRIBED} more" if len(lines) > _MOST_DESCRIBED else ""
    is_short = max(len(line.points) for line in lines) <= _SHORT
    return Chart(
        title=title,
        x_name=x_name,
        y_name=y_name,
        lines=tuple(lines),
        description=f"{title}: {ends}{more}.",
        y_range=y_range_of(lines, math.inf if is_short else _FARTHEST),
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
