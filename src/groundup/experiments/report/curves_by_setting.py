"""The best loss over a numeric setting that was varied: where it is lowest, where training fails.

A second varied setting, or the variants of a sweep, make a line each. How it looks is
`curves_by_setting_svg`.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite, log
from typing import Any

from groundup.experiments.report.curves import NUM_SLOTS
from groundup.experiments.results.groups import Group, common_values, short_name, show_setting
from groundup.experiments.results.statistics import Interval

_MOST_LINES = 12
_LEAST_RATIO_OF_LOG = 4.0


@dataclass(frozen=True)
class SettingPoint:
    """What the runs at one value came to."""

    x: float
    loss: Interval | None
    num_diverged: int = 0
    is_best: bool = False
    is_open: bool = False
    """Have some of the runs not ended yet, or not by themselves?"""


@dataclass(frozen=True)
class SettingLine:
    """The values of the setting, from the least up, with all else alike."""

    label: str
    slot: int | None
    points: tuple[SettingPoint, ...]


@dataclass(frozen=True)
class SettingChart:
    """One drawing."""

    x_name: str
    y_name: str
    lines: tuple[SettingLine, ...]

    @property
    def title(self) -> str:
        return f"{self.y_name} by {self.x_name}"

    @property
    def is_log(self) -> bool:
        return are_geometric([point.x for line in self.lines for point in line.points])


def chart_of(
    groups: Sequence[Group], varied: Sequence[str] | None, measure_name: str
) -> SettingChart | None:
    """The drawing, or None if what varies is no number or too much varies.

    `varied` are the settings that a sweep names; without one, those that differ are taken.
    """
    groups = [group for group in groups if group.runs[0].settings]
    groups = [group for group in groups if group.best is not None or group.num_diverged]
    if len({group.data_id for group in groups}) != 1:
        return None
    tried = _apparent(groups) if varied is None else varied
    names = [name for name in tried if _num_values(groups, name) > 1]
    variants = list(dict.fromkeys(_variant(group) for group in groups))
    if not 1 <= len(names) <= (1 if len(variants) > 1 else 2):
        return None
    if not all(_is_number(group.differences[name]) for name in names for group in groups):
        return None
    members: dict[Any, list[Group]] = {}
    for group in groups:
        key = group.differences[names[1]] if len(names) > 1 else _variant(group)
        members.setdefault(key, []).append(group)
    if len(names) > 1:
        members = dict(sorted(members.items()))
    # A line of single points would be no line: with drawn values there is nothing to connect.
    if len(members) > _MOST_LINES or len(members) * 2 > len(groups):
        return None
    lines = []
    for place, (key, batch) in enumerate(members.items()):
        label = f"{short_name(names[1])} {show_setting(key)}" if len(names) > 1 else str(key or "")
        points = sorted((_point(group, names[0]) for group in batch), key=lambda point: point.x)
        lines.append(SettingLine(label, place if place < NUM_SLOTS else None, tuple(points)))
    return SettingChart(short_name(names[0]), f"Best {measure_name}", tuple(lines))


def are_geometric(values: Sequence[float]) -> bool:
    """Are the values spaced by ratio rather than by difference?"""
    distinct = sorted(set(values))
    if len(distinct) < 2 or distinct[0] <= 0 or distinct[-1] < _LEAST_RATIO_OF_LOG * distinct[0]:
        return False
    steps = [after - before for before, after in pairwise(distinct)]
    ratios = [log(after / before) for before, after in pairwise(distinct)]
    return _unevenness(ratios) <= _unevenness(steps)


def describe(chart: SettingChart) -> str:
    """The drawing in words."""
    return f"{chart.title}: " + "; ".join(_describe_line(line, chart) for line in chart.lines) + "."


def _describe_line(line: SettingLine, chart: SettingChart) -> str:
    known = [point for point in line.points if point.loss is not None]
    ended = [point for point in known if not point.is_open]
    told = [f"{line.label}:"] if line.label else []
    best = min(
        ended or known, key=lambda point: point.loss.mean if point.loss else 0.0, default=None
    )
    if best is not None and best.loss is not None:
        told.append(f"lowest at {chart.x_name} {best.x:g} with {best.loss.mean:.4f}")
        if best.is_open:
            told.append("so far")
    diverged = [f"{point.x:g}" for point in line.points if point.num_diverged]
    if diverged:
        told.append(f"{'and ' if best else ''}divergence at {', '.join(diverged)}")
    return " ".join(told)


def _point(group: Group, name: str) -> SettingPoint:
    return SettingPoint(
        x=float(group.differences[name]),
        loss=group.best,
        num_diverged=group.num_diverged,
        is_best=group.is_winner,
        is_open=any(run.outcome.state not in ("finished", "diverged") for run in group.runs),
    )


def _apparent(groups: Sequence[Group]) -> Iterator[str]:
    """What seems to have been varied by hand; lengths in steps often follow from the rest."""
    names = list(common_values(groups))
    chosen = [name for name in names if not name.endswith("_steps")]
    yield from chosen or names


def _num_values(groups: Sequence[Group], name: str) -> int:
    return len({repr(group.differences.get(name)) for group in groups})


def _variant(group: Group) -> str | None:
    return group.runs[0].variant


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _unevenness(gaps: Sequence[float]) -> float:
    return statistics.pstdev(gaps) / statistics.mean(gaps)
