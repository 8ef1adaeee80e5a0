"""Charts as values, and how plotly shows them on a page.

Lines are told apart by color, marker and dash. A static picture of the same chart is `pictures`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log
from statistics import mean, pstdev
from typing import Any

from groundup.experiments.report.text import markup

Point = tuple[float, float]

COLORS = (
    "#0a6b4d",
    "#c2570c",
    "#3a5bc7",
    "#a0337c",
    "#7a6a00",
    "#43768a",
    "#8a4b2d",
    "#5a4fa3",
)
NUM_STYLES = len(COLORS)
"""Lines beyond so many are grey."""

_SYMBOLS = ("circle", "square", "triangle-up", "diamond")
_DASHES = ("solid", "solid", "dash", "dot")

# Losses this many times as far from the best as nearly all others would press down the rest.
_FARTHEST, _FRACTION_SHOWN = 5.0, 0.88
_LEAST_RATIO_OF_LOG = 4.0
_MOST_TICKS = 12


@dataclass(frozen=True)
class Line:
    """One line of a chart, with what belongs to it."""

    label: str
    points: tuple[Point, ...]
    style: int | None = None
    """Which color, marker and dash it has, from 0; None for one of many in the background."""
    half_widths: tuple[float | None, ...] = ()
    """Of the 95% interval of each point."""
    band: tuple[tuple[float, float, float], ...] = ()
    """x with the lower and the upper end of the interval."""
    threads: tuple[tuple[Point, ...], ...] = ()
    """Thin lines behind it: single runs, or values before smoothing."""
    crosses: tuple[float, ...] = ()
    """Where runs diverged, marked at the top."""
    stars: tuple[Point, ...] = ()
    hollow: frozenset[float] = frozenset()
    """Points of runs that have not ended."""
    is_diverged: bool = False
    has_markers: bool = True

    @property
    def color(self) -> str:
        if self.is_diverged:
            return "#a8271b"
        return "#9aa19c" if self.style is None else COLORS[self.style % len(COLORS)]

    @property
    def marker(self) -> int:
        return (self.style or 0) % len(_SYMBOLS)

    @property
    def dash(self) -> int:
        return 3 if self.is_diverged else (self.style or 0) // 2 % len(_DASHES)


@dataclass(frozen=True)
class Chart:
    """Lines over one axis."""

    title: str
    x_name: str
    y_name: str
    lines: tuple[Line, ...]
    description: str = ""
    """The chart in words, for those who cannot see it."""
    is_log: bool = False
    is_percent: bool = False
    references: tuple[float, ...] = ()
    """Dashed lines across it, such as the value of a reference text."""
    y_range: tuple[float, float] | None = None

    @property
    def x_values(self) -> list[float]:
        """Where there is something, in order."""
        return sorted({x for line in self.lines for x in (*line.crosses, *dict(line.points))})


def y_range_of(lines: Sequence[Line], farthest: float) -> tuple[float, float] | None:
    """The range that shows what matters: without far values, and without lines that diverged.

    farthest: values lie above the chart where they are more than this many times as far above the
        lowest one as nearly all others are. Up to three values are all shown.
    """
    sound = [line for line in lines if line.points and not line.is_diverged]
    counted = [line for line in sound if line.style is not None] or sound
    counted = counted or [line for line in lines if line.points]
    values = sorted(y for line in counted for _, y in line.points)
    if not values:
        return None
    ends = (line.points[-1][1] for line in counted if not line.has_markers)
    low, high = values[0], max(values[int((len(values) - 1) * _FRACTION_SHOWN)], *ends, values[0])
    if len(values) <= 3 or values[-1] - low <= farthest * (high - low):
        high = values[-1]
    room = max((high - low) * 0.06, abs(high) * 1e-3, 1e-9)
    widths = [
        min(width, 0.6 * (high - low) + room)
        for line in lines
        for (_, y), width in zip(line.points, line.half_widths, strict=False)
        if width is not None and y <= high
    ]
    room = max([room, *widths])
    # The top is kept for crosses.
    top = high + (1.5 if any(line.crosses for line in lines) else 1.0) * room
    return _rounded(low - room), _rounded(top)


def chart_over(x_name: str, y_name: str, lines: Sequence[Line]) -> Chart:
    """A chart of lines over one setting, with its range, its scale and its description."""
    title = f"{y_name} by {x_name}"
    told = "; ".join(_describe(line, x_name) for line in lines)
    chart = Chart(title, x_name, y_name, tuple(lines), f"{title}: {told}.")
    is_log, y_range = are_geometric(chart.x_values), y_range_of(lines, _FARTHEST)
    return replace(chart, is_log=is_log, y_range=y_range)


def are_geometric(values: Sequence[float]) -> bool:
    """Are the values, in order, spaced by ratio rather than by difference?"""
    if len(values) < 2 or values[0] <= 0 or values[-1] < _LEAST_RATIO_OF_LOG * values[0]:
        return False
    steps = [after - before for before, after in pairwise(values)]
    ratios = [log(after / before) for before, after in pairwise(values)]
    return pstdev(ratios) / mean(ratios) <= pstdev(steps) / mean(steps)


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


def plotly_figure(chart: Chart) -> dict[str, Any]:
    """The chart as plotly.js takes it; `var(--…)` stands for a color of the page's style sheet."""
    data: list[dict[str, Any]] = []
    for line in sorted(
        chart.lines, key=lambda line: -(line.style if line.style is not None else 99)
    ):
        data += _plotly_line(line, chart)
    axis = {"gridcolor": "var(--line)", "zeroline": False, "linecolor": "var(--line-strong)"}
    layout: dict[str, Any] = {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": "var(--text-muted)", "size": 12},
        "margin": {"l": 64, "r": 16, "t": 40, "b": 48},
        "hovermode": "closest",
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "var(--text-muted)"},
        "legend": {"orientation": "h", "y": -0.2, "traceorder": "reversed"},
        "xaxis": {**axis, "title": {"text": markup(chart.x_name)}, "showgrid": False},
        "yaxis": {**axis, "title": {"text": markup(chart.y_name)}},
        "showlegend": len(chart.lines) > 1,
        "shapes": [
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": y,
                "y1": y,
                "line": {"dash": "dash", "width": 1, "color": "var(--text-muted)"},
            }
            for y in chart.references
        ],
    }
    if chart.is_log:
        values = chart.x_values
        ticks = {"tickvals": values} if len(values) <= _MOST_TICKS else {"dtick": 1}
        layout["xaxis"] |= {"type": "log", **ticks}
    if chart.is_percent:
        layout["yaxis"]["tickformat"] = ".0%"
    if chart.y_range:
        layout["yaxis"]["range"] = list(chart.y_range)
    return {"data": data, "layout": layout}


def _plotly_line(line: Line, chart: Chart) -> list[dict[str, Any]]:
    name, color = markup(line.label), line.color

    def scatter(points: Iterable[Point], **look: Any) -> dict[str, Any]:
        xs, ys = ([*map(_rounded, axis)] for axis in columns_of(points))
        return {"type": "scatter", "legendgroup": name, "name": name, "x": xs, "y": ys, **look}

    behind = {"mode": "lines", "showlegend": False, "hoverinfo": "skip"}
    data = []
    if line.band:
        upper = [(x, high) for x, _, high in line.band]
        lower = [(x, low) for x, low, _ in reversed(line.band)]
        fill = {"fill": "toself", "fillcolor": f"{color}24", "line": {"width": 0}}
        data.append(scatter([*upper, *lower], **behind, **fill))
    for thread in line.threads:
        data.append(scatter(thread, **behind, line={"color": color, "width": 1}, opacity=0.35))
    symbols = [
        _SYMBOLS[line.marker] + ("-open" if x in line.hollow else "") for x, _ in line.points
    ]
    bars = {"array": [width or 0 for width in line.half_widths], "thickness": 1.5}
    data.append(
        scatter(
            line.points,
            mode="lines+markers" if line.has_markers else "lines",
            line={"color": color, "width": 2, "dash": _DASHES[line.dash]},
            marker={"size": 8, "symbol": symbols},
            **({"error_y": bars} if line.half_widths else {}),
        )
    )
    look = {"size": 13, "color": color, "line": {"width": 2, "color": color}}
    beside = {"mode": "markers", "showlegend": False, "cliponaxis": False}
    if line.stars:
        marker = {**look, "symbol": "star"}
        data.append(scatter(line.stars, **beside, hovertext="best", marker=marker))
    if crosses := crosses_of(line, chart):
        marker = {**look, "symbol": "x-thin-open"}
        data.append(scatter(crosses, **beside, hovertext="diverged", marker=marker))
    return data


def _rounded(value: float) -> float:
    """As exact as a chart can show, in as few digits. What lies at an end of the range must not
    lie beyond it after rounding, so that is rounded too."""
    return float(f"{value:.5g}")


def columns_of(points: Iterable[Point]) -> tuple[list[float], list[float]]:
    """The x and the y of points."""
    known = list(points)
    return [x for x, _ in known], [y for _, y in known]


def crosses_of(line: Line, chart: Chart) -> list[Point]:
    """At the top of the chart; a line that diverged has one where it ends or leaves for good."""
    top = chart.y_range[1] if chart.y_range else max((y for _, y in line.points), default=1.0)
    if not line.is_diverged or not line.points:
        return [(x, top) for x in line.crosses]
    end = line.points[-1]
    for x, y in reversed(line.points):
        if y <= top:
            if end[1] <= top:
                return [end]
            fraction = (top - y) / (end[1] - y)
            return [(x + fraction * (end[0] - x), top)]
        end = x, y
    return [(end[0], top)]
