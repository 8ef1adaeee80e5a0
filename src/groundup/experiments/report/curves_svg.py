"""Curves as SVG without script: colours from a style sheet, shapes and dashes for those without.

The same drawing stands inside a page, which brings the style sheet, or alone in a file.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from groundup.experiments.report.curves import Axis, Curve, Point
from groundup.experiments.report.figure_text import markup, shorten_alike, show_count, show_loss

STYLE_FILE = Path(__file__).parent / "static" / "curves.css"

# The highest losses, early ones mostly, lie above the drawing where they would press down the rest:
# where they are this many times as high above the lowest one as nearly all others. Of few points
# none is lightly left out.
_SHARE_DRAWN = 0.88
_FARTHEST, _FARTHEST_OF_FEW, _FEW = 2.5, 6.0, 20
_LABEL_HEIGHT = 15.0
_MOST_LABELS, _LONGEST_LABEL = 16, 24


class Size(NamedTuple):
    """A drawing's size and the room around its plot, in its own units."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int


WIDE = Size(880, 380, 58, 172, 14, 46)
NARROW = Size(360, 280, 46, 12, 12, 44)
SMALL = Size(420, 220, 58, 14, 12, 42)


class _Scale(NamedTuple):
    """Where values lie in the drawing."""

    size: Size
    x_end: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        across = self.size.width - self.size.left - self.size.right
        return self.size.left + value / self.x_end * across

    def y(self, value: float) -> float:
        down = self.size.height - self.size.top - self.size.bottom
        return self.size.top + (self.y_high - value) / (self.y_high - self.y_low) * down

    def inside(self, value: float) -> float:
        return min(max(value, self.y_low), self.y_high)


def draw_chart(
    curves: Sequence[Curve], axis: Axis, figure_name: str, size: Size = WIDE, *, identity: str = ""
) -> str:
    """One plot; `identity` tells the drawings of one page apart."""
    curves = [curve for curve in curves if curve.line]
    if not curves:
        return ""
    scale = _scale(curves, size)
    clip = f"plot-{identity or axis}"
    width, height = size.width, size.height
    plot = (
        f'x="{size.left}" y="{size.top}" width="{width - size.left - size.right}" '
        f'height="{height - size.top - size.bottom}"'
    )
    behind_first = sorted(curves, key=lambda curve: (curve.slot is not None, -(curve.slot or 0)))
    return (
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{markup(describe(curves, axis, figure_name))}">'
        f'<clipPath id="{clip}"><rect {plot}/></clipPath>'
        f"{_grid(scale, axis, figure_name)}"
        + "".join(_draw_curve(curve, scale, clip) for curve in behind_first)
        + (_end_labels(curves, scale) if size.right > 60 else "")
        + "</svg>"
    )


def draw_file(curves: Sequence[Curve], axis: Axis, figure_name: str) -> str:
    """The plot as a file of its own."""
    return as_file(draw_chart(curves, axis, figure_name, WIDE), WIDE)


def as_file(drawing: str, size: Size) -> str:
    """A drawing that stands alone."""
    return drawing.replace(">", f">{draw_ground(size.width, size.height)}", 1) + "\n"


def draw_ground(width: int, height: int) -> str:
    """The style of a file and its paper, readable on light and dark pages."""
    style = f"<style>{STYLE_FILE.read_text('utf-8')}</style>"
    return f'{style}<rect class="paper" width="{width}" height="{height}" rx="8"/>'


def draw_key(curve: Curve) -> str:
    """The line sample that stands beside a label."""
    mark = _mark(curve, 24, 7)
    return (
        f'<svg class="chart key" viewBox="0 0 32 14" width="32" height="14" aria-hidden="true">'
        f'<g class="{_class(curve)}"><path class="line" d="M2 7H24"/>{mark}</g></svg>'
    )


def draw_mark(slot: int, x: float, y: float, *, is_open: bool = False) -> str:
    """The shape of a style, hollow where something goes on."""
    shapes = (
        f"M{x - 4:.1f} {y:.1f}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",
        f"M{x - 4:.1f} {y - 4:.1f}h8v8h-8Z",
        f"M{x:.1f} {y - 5:.1f}l5 9h-10Z",
        f"M{x:.1f} {y - 5.5:.1f}l5.5 5.5l-5.5 5.5l-5.5 -5.5Z",
    )
    return f'<path class="{"mark open" if is_open else "mark"}" d="{shapes[slot % 4]}"/>'


def draw_cross(x: float, y: float) -> str:
    """Divergence."""
    return f'<path class="cross" d="M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10"/>'


def describe(curves: Sequence[Curve], axis: Axis, figure_name: str, longest: int = 8) -> str:
    """The drawing in words: where each curve ends."""
    by = {"step": "step", "tokens": "tokens", "wall_seconds": "wall clock"}[axis]
    ends = "; ".join(
        f"{curve.label} {'diverges at' if curve.is_diverged else 'ends at'} "
        f"{show_loss(curve.line[-1][1])}"
        for curve in curves[:longest]
    )
    rest = f"; and {len(curves) - longest} more" if len(curves) > longest else ""
    return f"{figure_name} by {by}: {ends}{rest}."


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """About so many round numbers that lie between the two."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def move_apart(places: Sequence[float], top: float, bottom: float) -> list[float]:
    """Places from top to bottom, at least a line apart, within the plot if they all fit."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + _LABEL_HEIGHT) if moved else max(place, top))
    limit = bottom
    for index in range(len(moved) - 1, -1, -1):
        moved[index] = min(moved[index], limit)
        limit = moved[index] - _LABEL_HEIGHT
    return moved


def short_number(value: float) -> str:
    """A number beside an axis."""
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.3g}"
    return f"{round(value, 6):,.10g}"


def _scale(curves: Sequence[Curve], size: Size) -> _Scale:
    x_end = max(x for curve in curves for x, _ in curve.line) or 1.0
    sound = [curve for curve in curves if not curve.is_diverged]
    counted = [curve for curve in sound if curve.slot is not None] or sound or list(curves)
    values = sorted(y for curve in counted for _, y in curve.line)
    ends = (curve.line[-1][1] for curve in counted)
    low, high = values[0], max(values[int((len(values) - 1) * _SHARE_DRAWN)], *ends)
    farthest = _FARTHEST_OF_FEW if len(values) <= _FEW else _FARTHEST
    if values[-1] - low <= farthest * (high - low):
        high = values[-1]
    room = max((high - low) * 0.06, abs(high) * 1e-4, 1e-9)
    return _Scale(size, x_end, low - room, high + room)


def _grid(scale: _Scale, axis: Axis, figure_name: str) -> str:
    size = scale.size
    right, bottom = size.width - size.right, size.height - size.bottom
    parts = ['<g class="grid">']
    for value in ticks(scale.y_low, scale.y_high):
        y = scale.y(value)
        parts.append(f'<path d="M{size.left} {y:.1f}H{right}"/>')
        parts.append(
            f'<text x="{size.left - 8}" y="{y + 4:.1f}" class="y">{short_number(value)}</text>'
        )
    unit, divisor = _unit(axis, scale.x_end)
    about = 6 if size.width > 500 else 4
    for value in ticks(0.0, scale.x_end / divisor, about):
        x = scale.x(value * divisor)
        told = show_count(value) if axis == "tokens" else f"{value:,.10g}"
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" class="x">{told}</text>')
    parts.append(f'<path class="floor" d="M{size.left} {bottom}H{right}"/>')
    parts.append(f'<text x="{right}" y="{bottom + 37}" class="name">{unit}</text>')
    parts.append(
        f'<text x="{size.left}" y="{bottom + 37}" class="name start">{markup(figure_name)}</text>'
    )
    return "".join(parts) + "</g>"


def _unit(axis: Axis, end: float) -> tuple[str, float]:
    if axis != "wall_seconds":
        return axis + ("s" if axis == "step" else ""), 1.0
    for unit, seconds in (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)):
        if end >= 2 * seconds:
            return unit, seconds
    return "seconds", 1.0


def _draw_curve(curve: Curve, scale: _Scale, clip: str) -> str:
    parts = [f'<g class="{_class(curve)}"><title>{markup(curve.label)}</title>']
    parts.append(f'<g clip-path="url(#{clip})">')
    if curve.band:
        upper = [(x, high) for x, _, high in curve.band]
        lower = [(x, low) for x, low, _ in reversed(curve.band)]
        parts.append(f'<path class="band" d="{_path([*upper, *lower], scale)}Z"/>')
    parts += [f'<path class="thread" d="{_path(one, scale)}"/>' for one in curve.threads if one]
    path = _path(curve.line, scale)
    parts.append(f'<path class="hit" d="{path}"/><path class="line" d="{path}"/></g>')
    x, y = _visible_end(curve, scale)
    parts.append(_mark(curve, scale.x(x), scale.y(scale.inside(y))))
    return "".join(parts) + "</g>"


def _visible_end(curve: Curve, scale: _Scale) -> Point:
    """The last point, or where the curve leaves the drawing above for good."""
    end = curve.line[-1]
    for x, y in reversed(curve.line):
        if y <= scale.y_high:
            if end[1] <= scale.y_high:
                return end
            share = (scale.y_high - y) / (end[1] - y)
            return x + share * (end[0] - x), scale.y_high
        end = x, y
    return curve.line[-1]


def _path(points: Sequence[Point], scale: _Scale) -> str:
    # Far outside the plot a coordinate only has to be outside, and short.
    reach = 4 * (scale.y_high - scale.y_low)
    low, high = scale.y_low - reach, scale.y_high + reach
    return "M" + "L".join(
        f"{scale.x(x):.1f} {scale.y(min(max(y, low), high)):.1f}" for x, y in points
    )


def _mark(curve: Curve, x: float, y: float) -> str:
    """The end of a curve: a shape of its style, a cross where it diverged."""
    if curve.is_diverged:
        return draw_cross(x, y)
    return "" if curve.slot is None else draw_mark(curve.slot, x, y, is_open=curve.is_open)


def _end_labels(curves: Sequence[Curve], scale: _Scale) -> str:
    """Labels beside the ends of the curves in front, moved apart where they would collide."""
    named = [curve for curve in curves if curve.slot is not None or curve.is_diverged]
    named = sorted(named, key=lambda curve: curve.is_diverged)[:_MOST_LABELS]
    named = sorted(named, key=lambda curve: curve.line[-1][1], reverse=True)
    labels = shorten_alike([curve.label for curve in named], _LONGEST_LABEL)
    places = [scale.y(scale.inside(curve.line[-1][1])) for curve in named]
    places = move_apart(places, scale.size.top + 4.0, scale.size.height - scale.size.bottom)
    x = scale.size.width - scale.size.right + 14
    return "".join(
        f'<text class="label {_class(curve)}" x="{x}" y="{y + 4:.1f}">'
        f"{'✕ ' if curve.is_diverged else ''}{markup(label)}</text>"
        for curve, label, y in zip(named, labels, places, strict=True)
    )


def _class(curve: Curve) -> str:
    if curve.is_diverged:
        return "curve diverged"
    return "curve behind" if curve.slot is None else f"curve slot-{curve.slot + 1}"
