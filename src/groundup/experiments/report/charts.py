"""The charts of a report as plotly figures: `{"data": …, "layout": …}`.

Buttons select the x axis. The page replaces `var(--…)` by colors of its style sheet.
"""

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from groundup.experiments.groups import Group
from groundup.experiments.run_result import RunResult

Figure = dict[str, Any]

AXES = {"step": "steps", "tokens": "tokens", "wall_seconds": "seconds"}
COLORS = (
    "#0a6b4d", "#c2570c", "#3a5bc7", "#a0337c", "#7a6a00", "#43768a", "#8a4b2d", "#5a4fa3"
)  # fmt: skip
# Points per chart, and the maximum and minimum per curve.
_NUM_POINTS, _MAX_POINTS, _MIN_POINTS = 4_000, 240, 40
# The y axis omits the highest 12% of the values, which are early losses, unless curves are short.
_FRACTION_SHOWN, _SHORT = 0.88, 20


def learning_curves(groups: Sequence[Group], metric: str, name: str) -> Figure | None:
    """The curves of a metric, one color per group; None if no run has the metric."""
    num_runs = sum(len(group.runs) for group in groups)
    num_points = max(_MIN_POINTS, min(_MAX_POINTS, _NUM_POINTS // max(1, num_runs)))
    data: list[dict[str, Any]] = []
    along: dict[str, list[list[float | None]]] = {axis: [] for axis in AXES}
    ends: list[float] = []
    for number, group in enumerate(groups):
        color, is_first = COLORS[number % len(COLORS)], True
        for run in group.runs:
            columns = _read(run, metric, num_points)
            ys = columns.pop(metric)
            if not ys:
                continue
            is_diverged = run.outcome.state == "diverged"
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": escape(group.label),
                    "legendgroup": escape(group.label),
                    "showlegend": is_first,
                    "line": {"color": color, "width": 2, "dash": "dot" if is_diverged else "solid"},
                    "x": columns["step"],
                    "y": ys,
                }
            )
            for axis in AXES:
                along[axis].append(columns[axis])
            ends += [] if is_diverged else [y for y in ys[-1:] if y is not None]
            is_first = False
    if not data:
        return None
    buttons = [
        {
            "label": label,
            "method": "update",
            "args": [{"x": along[axis]}, {"xaxis.title.text": label}],
        }
        for axis, label in AXES.items()
    ]
    above = {"x": 0, "y": 1.12, "xanchor": "left", "yanchor": "bottom"}
    axis_look = {"gridcolor": "var(--line)", "zeroline": False, "linecolor": "var(--line-strong)"}
    return {
        "data": data,
        "layout": {
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"color": "var(--text-muted)", "size": 12},
            "margin": {"l": 64, "r": 16, "t": 56, "b": 48},
            "hovermode": "closest",
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "var(--text-muted)"},
            "legend": {"orientation": "h", "y": -0.2},
            "showlegend": len(groups) > 1,
            "xaxis": {**axis_look, "title": {"text": "steps"}, "showgrid": False},
            "yaxis": {**axis_look, "title": {"text": name}, "range": _y_range(data, ends)},
            "updatemenus": [{"type": "buttons", "direction": "right", **above, "buttons": buttons}],
        },
    }


def _read(run: RunResult, metric: str, num_points: int) -> dict[str, list[float | None]]:
    """The metric and its positions on every axis; long curves are reduced to `num_points` means of
    equal parts. None becomes a gap in plotly."""
    indices = np.array(run.metrics.indices(metric), dtype=int)
    columns = {"step": np.array([run.metrics.step_of(index) for index in indices])}
    for name in ("tokens", "wall_seconds", metric):
        values = run.metrics.column(name)
        columns[name] = np.array(values)[indices] if values else np.full(len(indices), math.nan)
    if len(indices) > num_points:
        columns = {
            name: np.array([part.mean() for part in np.array_split(values, num_points)])
            for name, values in columns.items()
        }
    return {
        name: [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]
        for name, values in columns.items()
    }


def _y_range(data: Sequence[dict[str, Any]], ends: Sequence[float]) -> list[float] | None:
    """The y range without the high losses at the start of long curves; None: plotly's default."""
    values = sorted(y for one in data for y in one["y"] if y is not None)
    if not values or max(len(one["y"]) for one in data) <= _SHORT:
        return None
    low, high = values[0], max([values[int(len(values) * _FRACTION_SHOWN)], *ends])
    room = max((high - low) * 0.06, abs(high) * 1e-3, 1e-9)
    return [low - room, high + room]
