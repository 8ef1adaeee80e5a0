"""The charts of a report as plotly figures: `{"data": …, "layout": …}`.

Learning curves are thinned, smoothed where they jitter, and averaged over seeds; buttons choose the
x axis. `var(--…)` stands for a color of the page's style sheet.
"""

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from groundup.experiments.groups import Group, short_name, show_setting
from groundup.experiments.isoflop import IsoflopResult
from groundup.experiments.run_result import RunResult
from groundup.experiments.statistics import confidence_interval
from groundup.planner.quantities import show_flops

Figure = dict[str, Any]

AXES = {"step": "steps", "tokens": "tokens", "wall_seconds": "seconds"}
COLORS = (
    "#0a6b4d", "#c2570c", "#3a5bc7", "#a0337c", "#7a6a00", "#43768a", "#8a4b2d", "#5a4fa3"
)  # fmt: skip
_DIVERGED, _MANY = "#a8271b", "#9aa19c"
_SYMBOLS = ("circle", "square", "triangle-up", "diamond")
_NUM_POINTS, _MOST_POINTS, _FEWEST_POINTS = 4_000, 240, 40
_SMOOTHING = 40
_JITTERING = frozenset({"loss", "gradient_norm", "tokens_per_second", "mfu"})
# Student's t makes the band of two seeds twelve times their distance: it would hide the curves.
_FEWEST_SEEDS_OF_A_BAND = 3
# The first steps of a long curve would press all that follows together.
_FARTHEST, _FRACTION_SHOWN, _SHORT = 2.5, 0.88, 20
_MOST_LINES = 12

Rows = np.ndarray[Any, np.dtype[np.float64]]
"""Of a metric of one run: step, tokens, wall_seconds and the value, a row for each point."""


def learning_curves(groups: Sequence[Group], metric: str, name: str) -> Figure | None:
    """The curves of a metric; None where no run has it."""
    shown = [group for group in groups if any(run.metrics.indices(metric) for run in group.runs)]
    num_runs = sum(len(group.runs) for group in shown)
    num_points = max(_FEWEST_POINTS, min(_MOST_POINTS, _NUM_POINTS // max(1, num_runs)))
    data: list[dict[str, Any]] = []
    ends: list[float] = []
    for number, group in enumerate(shown):
        rows = [_read(run, metric, num_points) for run in group.runs]
        rows = [own for own in rows if len(own)]
        is_diverged = group.num_diverged == len(group.runs)
        color = _DIVERGED if is_diverged else _color(number)
        label = escape(group.label)
        look = {"type": "scatter", "mode": "lines", "name": label, "legendgroup": label}
        if len(rows) == 1:
            data.append({**look, **_columns(rows[0]), "line": _line(color, is_diverged)})
        else:
            thread = {"showlegend": False, "hoverinfo": "skip", "opacity": 0.35}
            data += [
                {**look, **thread, **_columns(own), "line": {"color": color, "width": 1}}
                for own in rows
            ]
            data += _mean_lines(rows, look, color, is_diverged)
        if not is_diverged:
            ends += [float(own[-1, 3]) for own in rows]
    if not data:
        return None
    figure = _figure(data, "steps", name, legend=len(shown) > 1)
    figure["layout"]["yaxis"]["range"] = _y_range(data, ends)
    figure["layout"]["updatemenus"] = [
        {
            "type": "buttons",
            "direction": "right",
            "x": 0,
            "y": 1.12,
            "yanchor": "bottom",
            "xanchor": "left",
            "buttons": [
                {
                    "label": label,
                    "method": "update",
                    "args": [
                        {"x": [one["along"][axis] for one in data]},
                        {"xaxis.title.text": label},
                    ],
                }
                for axis, label in AXES.items()
            ],
        }
    ]
    for one in data:
        one["x"] = one.pop("along")["step"]
    return figure


def setting_chart(
    groups: Sequence[Group], varied: Sequence[str] | None, measure: str
) -> Figure | None:
    """The best loss over a numeric setting that was varied, with a line for each value of a second
    one or for each variant; None if what varies is no number or too much varies.

    varied: the settings that a sweep names; without one, those that differ are taken.
    """
    groups = [group for group in groups if group.runs[0].settings]
    groups = [group for group in groups if group.best is not None or group.num_diverged]
    if len({group.data_id for group in groups}) != 1:
        return None
    if varied is None:
        # What was varied by hand; lengths in steps often follow from the rest.
        differing = list(groups[0].differences)
        varied = [name for name in differing if not name.endswith("_steps")] or differing
    names = [n for n in varied if len({repr(group.differences.get(n)) for group in groups}) > 1]
    variants = {group.runs[0].variant for group in groups}
    if not 1 <= len(names) <= (1 if len(variants) > 1 else 2):
        return None
    if not all(_is_number(group.differences[name]) for name in names for group in groups):
        return None
    members: dict[Any, list[Group]] = {}
    for group in groups:
        key = group.differences[names[1]] if len(names) > 1 else group.runs[0].variant
        members.setdefault(key, []).append(group)
    # A line of single points would be no line: with random values there is nothing to connect.
    if len(members) > _MOST_LINES or len(members) * 2 > len(groups):
        return None
    data = []
    for number, (key, batch) in enumerate(members.items()):
        label = f"{short_name(names[1])} {show_setting(key)}" if len(names) > 1 else str(key or "")
        batch.sort(key=lambda group: float(group.differences[names[0]]))
        known = [(float(g.differences[names[0]]), g.best, g) for g in batch if g.best is not None]
        line = _points([(x, best.mean) for x, best, _ in known], label, number)
        line["error_y"] = {"array": [best.half_width or 0 for _, best, _ in known]}
        line["marker"]["symbol"] = [
            "star" if group.is_winner else _SYMBOLS[number % len(_SYMBOLS)] for *_, group in known
        ]
        data.append(line)
        if lost := [float(g.differences[names[0]]) for g in batch if g.num_diverged]:
            top = max((best.mean for _, best, _ in known), default=1.0)
            crosses = _points([(x, top) for x in lost], f"{label} diverged".strip(), number)
            crosses |= {"mode": "markers", "marker": {"symbol": "x-thin-open", "size": 12}}
            data.append(crosses)
    figure = _figure(data, short_name(names[0]), f"Best {measure}", legend=len(members) > 1)
    xs = sorted({x for one in data for x in one["x"]})
    if _is_geometric(xs):
        figure["layout"]["xaxis"]["type"] = "log"
    return figure


def isoflop_chart(result: IsoflopResult) -> Figure:
    """Loss over size, a line for each budget; the prediction and its test as single points."""
    points: dict[str, list[tuple[float, float]]] = {}
    for size in result.sizes:
        label = show_flops(size.budget_flops)
        points.setdefault(label, []).append((float(size.num_parameters), size.loss))
    prediction = result.prediction
    predicted = [(prediction.best_parameters, prediction.predicted_loss)]
    points[f"{show_flops(prediction.budget_flops)}, predicted"] = predicted
    data = [_points(line, label, n) for n, (label, line) in enumerate(points.items())]
    figure = _figure(data, "parameters", "Loss", legend=True)
    figure["layout"]["xaxis"]["type"] = "log"
    return figure


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


def _read(run: RunResult, metric: str, num_points: int) -> Rows:
    """The metric, smoothed where it jitters, at evenly chosen points."""
    indices = np.array(run.metrics.indices(metric), dtype=int)
    table = np.full((len(indices), 4), math.nan)
    table[:, 0] = [run.metrics.step_of(index) for index in indices]
    for column, name in enumerate(("tokens", "wall_seconds", metric), start=1):
        if values := run.metrics.column(name):
            table[:, column] = np.array(values)[indices]
    if metric in _JITTERING and len(table) > _SMOOTHING:
        table[:, 3] = smooth(table[:, 3].tolist(), len(table) // _SMOOTHING)
    if len(table) > num_points:
        table = table[np.linspace(0, len(table) - 1, num_points).round().astype(int)]
    return table


def _mean_lines(
    rows: Sequence[Rows], look: dict[str, Any], color: str, is_diverged: bool
) -> list[dict[str, Any]]:
    """The mean over seeds at the steps that all reached, with its 95% band from three seeds on."""
    low, high = max(own[0, 0] for own in rows), min(own[-1, 0] for own in rows)
    shared = [step for step in rows[0][:, 0] if low <= step <= high]
    if not shared:
        return []
    mean = np.mean(
        [[np.interp(shared, own[:, 0], own[:, n]) for n in range(4)] for own in rows], axis=0
    ).T
    lines = [{**look, **_columns(mean), "line": _line(color, is_diverged)}]
    if len(rows) >= _FEWEST_SEEDS_OF_A_BAND:
        values = np.array([np.interp(shared, own[:, 0], own[:, 3]) for own in rows]).T
        found = [confidence_interval(one) for one in values.tolist()]
        upper, lower = mean.copy(), mean.copy()
        upper[:, 3] = [math.nan if one is None else one.high for one in found]
        lower[:, 3] = [math.nan if one is None else one.low for one in found]
        band = _columns(np.concatenate([upper, lower[::-1]]))
        fill = {"fill": "toself", "fillcolor": f"{color}24", "line": {"width": 0}}
        lines.insert(0, {**look, **band, **fill, "showlegend": False, "hoverinfo": "skip"})
    return lines


def _columns(rows: Rows) -> dict[str, Any]:
    """Values, and their positions along every axis; plotly leaves gaps where there are none."""
    ys = [_rounded(y) for y in rows[:, 3].tolist()]
    along = {axis: [_rounded(x) for x in rows[:, n].tolist()] for n, axis in enumerate(AXES)}
    return {"y": ys, "along": along}


def _points(points: Sequence[tuple[float, float]], label: str, number: int) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": escape(label),
        "x": [_rounded(x) for x, _ in points],
        "y": [_rounded(y) for _, y in points],
        "line": {"color": _color(number), "width": 2},
        "marker": {"size": 8, "symbol": _SYMBOLS[number % len(_SYMBOLS)]},
    }


def _figure(data: list[dict[str, Any]], x_name: str, y_name: str, *, legend: bool) -> Figure:
    axis = {"gridcolor": "var(--line)", "zeroline": False, "linecolor": "var(--line-strong)"}
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
            "showlegend": legend,
            "xaxis": {**axis, "title": {"text": escape(x_name)}, "showgrid": False},
            "yaxis": {**axis, "title": {"text": escape(y_name)}},
        },
    }


def _y_range(data: Sequence[dict[str, Any]], ends: Sequence[float]) -> list[float] | None:
    """The range that shows what matters: where long curves begin far above the rest, without."""
    values = sorted(y for one in data for y in one["y"] if y is not None)
    longest = max(len(one["y"]) for one in data)
    if not values or longest <= _SHORT:
        return None
    low = values[0]
    high = max([values[int((len(values) - 1) * _FRACTION_SHOWN)], *ends])
    if values[-1] - low <= _FARTHEST * (high - low):
        high = values[-1]
    room = max((high - low) * 0.06, abs(high) * 1e-3, 1e-9)
    return [low - room, high + room]


def _line(color: str, is_diverged: bool) -> dict[str, Any]:
    return {"color": color, "width": 2, "dash": "dot" if is_diverged else "solid"}


def _color(number: int) -> str:
    return COLORS[number] if number < len(COLORS) else _MANY


def _is_geometric(values: Sequence[float]) -> bool:
    """Are the values, in order, spaced by ratio rather than by difference?"""
    if len(values) < 3 or values[0] <= 0 or values[-1] < 4 * values[0]:
        return False
    steps, ratios = np.diff(values), np.diff(np.log(values))
    return bool(ratios.std() / ratios.mean() <= steps.std() / steps.mean())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _rounded(value: float) -> float | None:
    """As exact as a chart can show, in as few digits; JSON has no NaN."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
