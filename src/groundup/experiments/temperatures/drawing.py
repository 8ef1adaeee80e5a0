"""The figures of a temperature study over the temperature, a panel each, as one SVG file."""

from collections.abc import Sequence
from typing import NamedTuple

from groundup.experiments.report.curves import NUM_SLOTS
from groundup.experiments.report.curves_svg import draw_ground, draw_mark, ticks
from groundup.experiments.report.figure_text import markup, shorten
from groundup.experiments.results.statistics import Interval
from groundup.experiments.temperatures.figures import FIGURES, Figure
from groundup.experiments.temperatures.study import RunStudy, TemperatureStudy

_WIDTH, _PANEL_HEIGHT = 880, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 22, 36, 40
_KEY_HEIGHT, _LETTER_WIDTH, _LONGEST_LABEL = 22, 7, 40
# Dashed, so that it is no line of the grid.
_REFERENCE = 'class="curve" style="--ink: var(--plot-text)" stroke-dasharray="6 4"'


class _Line(NamedTuple):
    """One run at one top-p: what was measured at each temperature, from the lowest on."""

    label: str
    slot: int
    points: list[tuple[float, dict[str, Interval | None]]]

    @property
    def style(self) -> str:
        return f"curve slot-{self.slot + 1}" if self.slot < NUM_SLOTS else "curve behind"


class _Panel(NamedTuple):
    """Where the values of one figure lie in the drawing."""

    left: float
    top: float
    x_low: float
    x_high: float
    y_low: float
    y_high: float

    @property
    def right(self) -> float:
        return self.left + _WIDTH / 2 - _LEFT - _RIGHT

    @property
    def bottom(self) -> float:
        return self.top + _PANEL_HEIGHT - _TOP - _BOTTOM

    def x(self, value: float) -> float:
        share = (value - self.x_low) / (self.x_high - self.x_low)
        return self.left + share * (self.right - self.left)

    def y(self, value: float) -> float:
        share = (value - self.y_low) / (self.y_high - self.y_low)
        return self.bottom - share * (self.bottom - self.top)


def draw_study(study: TemperatureStudy) -> str:
    """How sure, how varied, how repetitive, how well spelled: two panels side by side."""
    lines = _lines(study)
    names = ("bits_per_token", "own_3_grams", "repeated_4_grams", "known_words", "distinct_1_grams")
    drawn = [FIGURES[name] for name in names if any(_values(lines, name))][:4]
    references = [run.reference for run in study.runs if run.reference is not None]
    key, key_height = _key(lines, bool(references))
    height = key_height + _PANEL_HEIGHT * ((len(drawn) + 1) // 2)
    told = markup(f"{', '.join(figure.title for figure in drawn)} over the temperature")
    parts = [
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'role="img" aria-label="{told}">',
        draw_ground(_WIDTH, height),
        key,
    ]
    for place, figure in enumerate(drawn):
        left = place % 2 * _WIDTH / 2 + _LEFT
        top = key_height + place // 2 * _PANEL_HEIGHT + _TOP
        marks = [interval for own in references if (interval := own[figure.name]) is not None]
        parts.append(_draw_panel(lines, figure, marks, left, top))
    return "".join(parts) + "</svg>\n"


def _lines(study: TemperatureStudy) -> list[_Line]:
    # A greedy choice knows no top-p: every line of its run begins there.
    drawing = [setting.top_p for setting in study.settings if not setting.is_greedy]
    top_ps = list(dict.fromkeys(drawing)) or [1.0]
    lines: list[_Line] = []
    for run in study.runs:
        for top_p in top_ps:
            words = [run.name] if len(study.runs) > 1 else []
            words += [f"top-p {top_p:g}"] if len(top_ps) > 1 or not words else []
            lines.append(_Line(", ".join(words), len(lines), _points(run, top_p)))
    return lines


def _points(run: RunStudy, top_p: float) -> list[tuple[float, dict[str, Interval | None]]]:
    found = [
        (result.setting.temperature, result.figures)
        for result in run.results
        if result.setting.top_p == top_p or result.setting.is_greedy
    ]
    return sorted(found, key=lambda point: point[0])


def _values(lines: Sequence[_Line], name: str) -> list[Interval]:
    found = [figures.get(name) for line in lines for _, figures in line.points]
    return [interval for interval in found if interval is not None]


def _key(lines: Sequence[_Line], has_reference: bool) -> tuple[str, int]:
    """The names of the lines, in as many rows as they need, and the height of them."""
    x, y = 20.0, 12.0
    parts = []
    named = [(line.label, f'class="{line.style}"', draw_mark(line.slot, 13, 0)) for line in lines]
    named += [("reference text", _REFERENCE, "")] if has_reference else []
    for name, look, mark in named:
        label = shorten(name, _LONGEST_LABEL)
        width = 34 + _LETTER_WIDTH * len(label) + 18
        if x > 20 and x + width > _WIDTH:
            x, y = 20.0, y + _KEY_HEIGHT
        parts.append(
            f'<g {look} transform="translate({x} {y + 4})">'
            f'<path class="line" d="M0 0h26"/>{mark}'
            f'<text class="label" x="34" y="4">{markup(label)}</text></g>'
        )
        x += width
    return "".join(parts), round(y) + _KEY_HEIGHT


def _draw_panel(
    lines: Sequence[_Line],
    figure: Figure,
    marks: Sequence[Interval],
    left: float,
    top: float,
) -> str:
    """One figure; `marks` are its values of the reference text, across the panel."""
    panel = _fit(lines, figure, marks, left, top)
    parts = [_grid(panel, figure)]
    for mark in marks:
        path = f"M{panel.left} {panel.y(mark.mean):.1f}H{panel.right}"
        parts.append(f'<g {_REFERENCE}><path class="line" d="{path}"/></g>')
    for line in reversed(lines):
        known = [
            (temperature, interval)
            for temperature, figures in line.points
            if (interval := figures.get(figure.name)) is not None
        ]
        if not known:
            continue
        upper = [(panel.x(at), panel.y(_high(interval, figure))) for at, interval in known]
        lower = [(panel.x(at), panel.y(max(interval.low, 0.0))) for at, interval in known]
        middle = [(panel.x(at), panel.y(interval.mean)) for at, interval in known]
        parts.append(
            f'<g class="{line.style}"><title>{markup(line.label)}</title>'
            f'<path class="band" d="{_path([*upper, *reversed(lower)])}Z"/>'
            f'<path class="hit" d="{_path(middle)}"/><path class="line" d="{_path(middle)}"/>'
            + "".join(draw_mark(line.slot, x, y) for x, y in middle)
            + "</g>"
        )
    return "".join(parts)


def _fit(
    lines: Sequence[_Line], figure: Figure, marks: Sequence[Interval], left: float, top: float
) -> _Panel:
    temperatures = [temperature for line in lines for temperature, _ in line.points]
    x_low, x_high = min(temperatures), max(temperatures)
    if x_low == x_high:
        x_low, x_high = max(0.0, x_low - 0.5), x_high + 0.5
    found = _values(lines, figure.name)
    means = [mark.mean for mark in marks]
    low = max(0.0, min([*(interval.low for interval in found), *means]))
    high = max([*(_high(interval, figure) for interval in found), *means])
    room = (high - low) * 0.06 or max(abs(high) * 0.05, 0.005)
    return _Panel(left, top, x_low, x_high, max(0.0, low - room), high + room)


def _high(interval: Interval, figure: Figure) -> float:
    """No share is more than the whole, whatever its interval says."""
    return min(interval.high, 1.0) if figure.is_share else interval.high


def _grid(panel: _Panel, figure: Figure) -> str:
    title = figure.title[0].upper() + figure.title[1:]
    parts = [
        f'<g class="grid"><text x="{panel.left}" y="{panel.top - 14}" class="name start">'
        f"{markup(title)}</text>"
    ]
    for shown in ticks(panel.y_low * figure.factor, panel.y_high * figure.factor, 4):
        y = panel.y(shown / figure.factor)
        unit = "%" if figure.is_share else ""
        parts.append(
            f'<path d="M{panel.left} {y:.1f}H{panel.right}"/>'
            f'<text x="{panel.left - 8}" y="{y + 4:.1f}" class="y">{shown:.4g}{unit}</text>'
        )
    for temperature in ticks(panel.x_low, panel.x_high, 6):
        parts.append(
            f'<text x="{panel.x(temperature):.1f}" y="{panel.bottom + 17}" class="x">'
            f"{temperature:.4g}</text>"
        )
    parts.append(
        f'<path class="floor" d="M{panel.left} {panel.bottom}H{panel.right}"/>'
        f'<text x="{panel.right}" y="{panel.bottom + 33}" class="name">temperature</text>'
    )
    return "".join(parts) + "</g>"


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
