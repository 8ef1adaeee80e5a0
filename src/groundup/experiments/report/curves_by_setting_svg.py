"""Losses over a setting as SVG: marks with their intervals as bars, divergences at the top edge."""

import math
from typing import NamedTuple

from groundup.experiments.report.curves import Curve
from groundup.experiments.report.curves_by_setting import (
    SettingChart,
    SettingLine,
    SettingPoint,
    describe,
)
from groundup.experiments.report.curves_svg import (
    WIDE,
    Size,
    as_file,
    draw_cross,
    draw_key,
    draw_mark,
    move_apart,
    short_number,
    ticks,
)
from groundup.experiments.report.figure_text import markup, shorten_alike, show_count

# The top of the plot is kept for crosses; no loss lies there.
_EDGE = 22.0
_LETTER_WIDTH = 7.0
_APART, _CROSSES_APART = 6.0, 13.0
# Losses this many times as far from the best as the middle one would press down the rest.
_FARTHEST = 5.0
_LONGEST_BAR = 0.6


class _Scale(NamedTuple):
    """Where values lie in the drawing."""

    size: Size
    right: float
    is_log: bool
    x_low: float
    x_high: float
    y_low: float
    y_high: float

    @property
    def bottom(self) -> float:
        return self.size.height - self.size.bottom

    @property
    def edge(self) -> float:
        return self.size.top + _EDGE / 2

    def x(self, value: float) -> float:
        low, high, at = self.x_low, self.x_high, value
        if self.is_log:
            low, high, at = math.log(low), math.log(high), math.log(value)
        share = (at - low) / (high - low) if high > low else 0.5
        room = 22.0
        return self.size.left + room + share * (self.right - self.size.left - 2 * room)

    def y(self, value: float) -> float:
        top = self.size.top + _EDGE
        share = (self.y_high - value) / (self.y_high - self.y_low)
        return min(max(top + share * (self.bottom - top), top), self.bottom)


def draw_setting_chart(chart: SettingChart, size: Size = WIDE) -> str:
    """One plot, for a page that brings the style sheet."""
    scale = _scale(chart, size)
    has_bars = _has_bars(chart)
    is_many = len(chart.lines) > 1
    return (
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" '
        f'viewBox="0 0 {size.width} {size.height}" role="img" '
        f'aria-label="{markup(describe(chart))}">{_grid(chart, scale)}'
        + "".join(
            _draw_line(line, scale, place - (len(chart.lines) - 1) / 2, has_bars, is_many)
            for place, line in reversed(list(enumerate(chart.lines)))
        )
        + _name_crosses(chart, scale)
        + (_end_labels(chart, scale) if scale.right < size.width - 60 else "")
        + "</svg>"
    )


def draw_setting_file(chart: SettingChart) -> str:
    """The plot as a file of its own."""
    return as_file(draw_setting_chart(chart, WIDE), WIDE)


def draw_setting_keys(chart: SettingChart) -> list[tuple[str, str]]:
    """A line sample and the label of each line, where there are several."""
    if len(chart.lines) < 2:
        return []
    return [(draw_key(Curve(line.label, line.slot, ())), line.label) for line in chart.lines]


def _has_bars(chart: SettingChart) -> bool:
    points = (point for line in chart.lines for point in line.points)
    return any(point.loss and point.loss.half_width is not None for point in points)


def _scale(chart: SettingChart, size: Size) -> _Scale:
    points = [point for line in chart.lines for point in line.points]
    intervals = [point.loss for point in points if point.loss is not None]
    means = sorted(interval.mean for interval in intervals) or [0.0, 1.0]
    low, high = means[0], means[-1]
    if len(means) > 3:
        middle = means[len(means) // 2]
        high = min(high, low + _FARTHEST * (middle - low)) if middle > low else high
    longest = _LONGEST_BAR * (high - low) or max(abs(high) * 0.02, 1e-6)
    bars = [interval for interval in intervals if interval.mean <= high]
    y_low = max(min([low, *(interval.low for interval in bars)]), low - longest)
    y_high = min(max([high, *(interval.high for interval in bars)]), high + longest)
    room = max((y_high - y_low) * 0.05, abs(y_high) * 1e-4, 1e-9)
    is_labelled = len(chart.lines) > 1 and size.right > 60
    right = size.width - (size.right if is_labelled else min(size.right, 20))
    values = [point.x for point in points]
    # Below the best point, where no other can be, its star has room.
    y_low -= 2 * room if any(point.is_best for point in points) else room
    return _Scale(size, right, chart.is_log, min(values), max(values), y_low, y_high + room)


def _grid(chart: SettingChart, scale: _Scale) -> str:
    size, bottom = scale.size, scale.bottom
    parts = ['<g class="grid">']
    for value in ticks(scale.y_low, scale.y_high):
        y = scale.y(value)
        parts.append(f'<path d="M{size.left} {y:.1f}H{scale.right:.1f}"/>')
        told = short_number(value)
        parts.append(f'<text x="{size.left - 8}" y="{y + 4:.1f}" class="y">{told}</text>')
    end = 0.0
    for value in sorted({point.x for line in chart.lines for point in line.points}):
        told, x = _show_value(value), scale.x(value)
        half = len(told) * _LETTER_WIDTH / 2
        parts.append(f'<path d="M{x:.1f} {bottom}v5"/>')
        if x - half > end:
            parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" class="x">{told}</text>')
            end = x + half + _LETTER_WIDTH
    parts.append(f'<path class="floor" d="M{size.left} {bottom}H{scale.right:.1f}"/>')
    scaled = f"{chart.x_name}, log scale" if scale.is_log else chart.x_name
    if _has_bars(chart) and len(chart.lines) > 2 and scale.right < size.width - 60:
        scaled += "; points of one value set apart"
    names = ((scale.right, "name", scaled), (size.left, "name start", chart.y_name))
    for x, kind, name in names:
        parts.append(f'<text x="{x:.1f}" y="{bottom + 37}" class="{kind}">{markup(name)}</text>')
    return "".join(parts) + "</g>"


def _draw_line(
    line: SettingLine, scale: _Scale, aside: float, has_bars: bool, is_one_of_many: bool
) -> str:
    """`aside` keeps bars and crosses at one value apart, in places from the middle."""
    apart = _APART * aside if has_bars else 0.0
    style = _style(line)
    known = [point for point in line.points if point.loss is not None]
    places = [(scale.x(point.x) + apart, _mean(point, scale)) for point in known]
    parts = [f'<g class="curve {style}"><title>{markup(line.label)}</title>']
    if len(known) > 1:
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        parts.append(f'<path class="hit" d="M{path}"/><path class="line" d="M{path}"/>')
    for point, (x, y) in zip(known, places, strict=True):
        parts.append(_draw_point(point, line.slot or 0, x, y, scale))
    parts.append("</g>")
    crosses = "".join(
        draw_cross(scale.x(point.x) + _CROSSES_APART * aside, scale.edge)
        for point in line.points
        if point.num_diverged
    )
    kind = style if is_one_of_many else "diverged"
    return "".join(parts) + (f'<g class="curve {kind}">{crosses}</g>' if crosses else "")


def _name_crosses(chart: SettingChart, scale: _Scale) -> str:
    """The word for the crosses, before the first of them if there is room."""
    places = [
        scale.x(point.x) for line in chart.lines for point in line.points if point.num_diverged
    ]
    x = min(places, default=0.0) - 7.0 * len(chart.lines) - 4
    if x < scale.size.left + 60:
        return ""
    return f'<text class="y" x="{x:.1f}" y="{scale.edge + 4:.1f}">diverged</text>'


def _draw_point(point: SettingPoint, slot: int, x: float, y: float, scale: _Scale) -> str:
    interval = point.loss
    assert interval is not None
    if interval.mean > scale.y_high:
        return f'<path class="line" d="M{x - 5:.1f} {y + 6:.1f}l5 -6l5 6"/>'
    bar = ""
    if interval.half_width is not None:
        bar = f"M{x:.1f} {scale.y(interval.high):.1f}V{scale.y(interval.low):.1f}"
        for end in (interval.low, interval.high):
            if scale.y_low <= end <= scale.y_high:
                bar += f"M{x - 4:.1f} {scale.y(end):.1f}h8"
        bar = f'<path class="bar" d="{bar}"/>'
    star = ""
    if point.is_best:
        lowest = scale.y(interval.low) if interval.half_width is not None else y + 4
        star = f'<text class="x star" x="{x:.1f}" y="{lowest + 15:.1f}">★</text>'
    return bar + draw_mark(slot, x, y, is_open=point.is_open) + star


def _show_value(value: float) -> str:
    return show_count(value) if value >= 1e4 else f"{value:.4g}"


def _mean(point: SettingPoint, scale: _Scale) -> float:
    return scale.y(point.loss.mean) if point.loss is not None else scale.edge


def _end_labels(chart: SettingChart, scale: _Scale) -> str:
    ends: list[tuple[float, SettingLine]] = []
    for line in chart.lines:
        known = [point for point in line.points if point.loss is not None]
        ends.append((_mean(known[-1], scale) if known else scale.edge, line))
    ends.sort(key=lambda end: end[0])
    places = move_apart([y for y, _ in ends], scale.size.top + 4.0, scale.bottom)
    labels = shorten_alike([line.label for _, line in ends], 24)
    labelled = zip(ends, labels, places, strict=True)
    return "".join(
        f'<text class="label curve {_style(line)}" x="{scale.right + 14:.1f}" y="{y + 4:.1f}">'
        f"{markup(label)}</text>"
        for (_, line), label, y in labelled
    )


def _style(line: SettingLine) -> str:
    return "behind" if line.slot is None else f"slot-{line.slot + 1}"
