"""The best loss over a numeric setting that was varied: where it is lowest, where training fails.

A second varied setting, or the variants of a sweep, make a line each.
"""

import statistics
from collections.abc import Sequence
from itertools import pairwise
from math import isfinite, log
from typing import Any

from groundup.experiments.report.charts import NUM_STYLES, Chart, Line
from groundup.experiments.results.groups import Group, short_name, show_setting

_MOST_LINES = 12
_LEAST_RATIO_OF_LOG = 4.0
# Losses this many times as far from the best as the middle one would press down the rest.
_FARTHEST = 5.0


def setting_chart(
    groups: Sequence[Group], varied: Sequence[str] | None, measure_name: str
) -> Chart | None:
    """The chart, or None if what varies is no number or too much varies.

    `varied` are the settings that a sweep names; without one, those that differ are taken.
    """
    groups = [group for group in groups if group.runs[0].settings]
    groups = [group for group in groups if group.best is not None or group.num_diverged]
    if len({group.data_id for group in groups}) != 1:
        return None
    tried = _apparent(groups) if varied is None else varied
    names = [name for name in tried if _num_values(groups, name) > 1]
    variants = {group.runs[0].variant for group in groups}
    if not 1 <= len(names) <= (1 if len(variants) > 1 else 2):
        return None
    if not all(_is_number(group.differences[name]) for name in names for group in groups):
        return None
    members: dict[Any, list[Group]] = {}
    for group in groups:
        key = group.differences[names[1]] if len(names) > 1 else group.runs[0].variant
        members.setdefault(key, []).append(group)
    if len(names) > 1:
        members = dict(sorted(members.items()))
    # A line of single points would be no line: with random values there is nothing to connect.
    if len(members) > _MOST_LINES or len(members) * 2 > len(groups):
        return None
    lines = []
    for number, (key, batch) in enumerate(members.items()):
        label = f"{short_name(names[1])} {show_setting(key)}" if len(names) > 1 else str(key or "")
        lines.append(_line(batch, names[0], label, number if number < NUM_STYLES else None))
    return chart_over(short_name(names[0]), f"Best {measure_name}", lines)


def chart_over(x_name: str, y_name: str, lines: Sequence[Line]) -> Chart:
    """A chart of lines over one setting, with its range, its scale and its description."""
    values = [x for line in lines for x in (*(x for x, _ in line.points), *line.crosses)]
    told = "; ".join(_describe(line, x_name) for line in lines)
    title = f"{y_name} by {x_name}"
    return Chart(
        title=title,
        x_name=x_name,
        y_name=y_name,
        lines=tuple(lines),
        description=f"{title}: {told}.",
        is_log=are_geometric(values),
        y_range=_range(lines),
    )


def are_geometric(values: Sequence[float]) -> bool:
    """Are the values spaced by ratio rather than by difference?"""
    distinct = sorted(set(values))
    if len(distinct) < 2 or distinct[0] <= 0 or distinct[-1] < _LEAST_RATIO_OF_LOG * distinct[0]:
        return False
    steps = [after - before for before, after in pairwise(distinct)]
    ratios = [log(after / before) for before, after in pairwise(distinct)]
    return _unevenness(ratios) <= _unevenness(steps)


def _line(groups: Sequence[Group], name: str, label: str, style: int | None) -> Line:
    ordered = sorted(groups, key=lambda group: float(group.differences[name]))
    known = [(float(group.differences[name]), group.best, group) for group in ordered if group.best]
    return Line(
        label,
        tuple((x, best.mean) for x, best, _ in known),
        style,
        half_widths=tuple(best.half_width for _, best, _ in known),
        crosses=tuple(float(g.differences[name]) for g in ordered if g.num_diverged),
        stars=tuple((x, best.mean) for x, best, group in known if group.is_winner),
        hollow=frozenset(
            x
            for x, _, group in known
            if any(run.outcome.state not in ("finished", "diverged") for run in group.runs)
        ),
    )


def _range(lines: Sequence[Line]) -> tuple[float, float] | None:
    """All means but those far above the middle one; the top is kept for crosses."""
    means = sorted(y for line in lines for _, y in line.points)
    if not means:
        return None
    low, high = means[0], means[-1]
    middle = means[len(means) // 2]
    if len(means) > 3 and middle > low:
        high = min(high, low + _FARTHEST * (middle - low))
    widths = [
        width
        for line in lines
        for (_, y), width in zip(line.points, line.half_widths, strict=False)
        if width is not None and y <= high
    ]
    room = max(0.08 * (high - low), abs(high) * 1e-3, 1e-9)
    room = max([room, *(min(width, 0.6 * (high - low) + room) for width in widths)])
    return low - room, high + 1.5 * room


def _describe(line: Line, x_name: str) -> str:
    told = [f"{line.label}:"] if line.label else []
    ended = [point for point in line.points if point[0] not in line.hollow]
    best = min(ended or line.points, key=lambda point: point[1], default=None)
    if best is not None:
        told.append(f"lowest at {x_name} {best[0]:g} with {best[1]:.4f}")
        told += ["so far"] if best[0] in line.hollow else []
    if line.crosses:
        values = ", ".join(f"{x:g}" for x in line.crosses)
        told.append(f"{'and ' if best else ''}divergence at {values}")
    return " ".join(told)


def _apparent(groups: Sequence[Group]) -> list[str]:
    """What seems to have been varied by hand; lengths in steps often follow from the rest."""
    names = list(groups[0].differences) if groups else []
    return [name for name in names if not name.endswith("_steps")] or names


def _num_values(groups: Sequence[Group], name: str) -> int:
    return len({repr(group.differences.get(name)) for group in groups})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _unevenness(gaps: Sequence[float]) -> float:
    return statistics.pstdev(gaps) / statistics.mean(gaps)
