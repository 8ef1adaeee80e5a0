"""Draws validation loss by step and by wall clock, from the metrics of runs, as one SVG file.

    python tools/draw_learning_curves.py OUT.svg NAME=metrics.jsonl …

Without arguments, the drawings in docs/experiments are made anew from the metrics beside them.
"""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from groundup.runs.metrics_file import read_metrics

EXPERIMENTS = Path(__file__).resolve().parent.parent / "docs" / "experiments"
DRAWINGS = {
    "tinystories/stories.svg": {
        "validation": "tinystories/stories.jsonl",
        "training": "tinystories/stories.jsonl",
    },
    "tinystories/web.svg": {
        "AdamW": "tinystories/web-adamw.jsonl",
        "Muon": "tinystories/web-muon.jsonl",
    },
}

_WIDTH, _HEIGHT, _MARGIN = 420, 280, 48
# Told apart without colour vision as well: one is dark, one light, one dashed.
_STYLES = ('stroke="#1f4e9c"', 'stroke="#d9822b"', 'stroke="#2e7d4f" stroke-dasharray="5 3"')


class Curve(NamedTuple):
    """A name and its points."""

    name: str
    points: list[tuple[float, float]]


def draw(runs: dict[str, Path]) -> str:
    """Two panels side by side: the loss by step, and by seconds."""
    panels = [
        _panel(_curves(runs, "step"), "step", 0),
        _panel(_curves(runs, "wall_seconds"), "seconds", _WIDTH),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * _WIDTH} {_HEIGHT}" '
        f'font-family="sans-serif" font-size="11">\n'
        f'<rect width="{2 * _WIDTH}" height="{_HEIGHT}" fill="white"/>\n'
        + "".join(panels)
        + "</svg>\n"
    )


def _curves(runs: dict[str, Path], key: str) -> list[Curve]:
    curves = []
    for name, path in runs.items():
        value = "loss" if name == "training" else "validation_loss"
        metrics = read_metrics(path)
        points = [
            (metrics.column(key)[i], metrics.column(value)[i]) for i in metrics.indices(value)
        ]
        # The first steps would press all that follows into the lowest tenth.
        curves.append(Curve(name, [point for point in points if point[1] < 7]))
    return curves


def _panel(curves: Sequence[Curve], title: str, left: int) -> str:
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in curves for _, y in curve.points]
    x_ticks, y_ticks = _ticks(min(0.0, min(xs)), max(xs)), _ticks(min(ys), max(ys))
    lowest, highest = min(y_ticks[0], min(ys)), max(y_ticks[-1], max(ys))
    begin, end = min(x_ticks[0], min(xs)), max(x_ticks[-1], max(xs))

    def place(x: float, y: float) -> tuple[float, float]:
        across = left + _MARGIN + (x - begin) / (end - begin) * (_WIDTH - 1.5 * _MARGIN)
        down = _MARGIN / 2 + (highest - y) / (highest - lowest) * (_HEIGHT - 1.5 * _MARGIN)
        return round(across, 1), round(down, 1)

    parts = []
    for y in y_ticks:
        (x1, down), (x2, _) = place(begin, y), place(end, y)
        parts.append(f'<path d="M{x1} {down}H{x2}" stroke="#ddd"/>\n')
        parts.append(f'<text x="{x1 - 6}" y="{down + 4}" text-anchor="end">{y:g}</text>\n')
    for x in x_ticks:
        across, down = place(x, lowest)
        parts.append(f'<text x="{across}" y="{down + 16}" text-anchor="middle">{x:g}</text>\n')
    across, down = place(begin, highest)
    parts.append(f'<text x="{across - 6}" y="{down - 8}" text-anchor="end">loss</text>\n')
    across, down = place((begin + end) / 2, lowest)
    parts.append(f'<text x="{across}" y="{down + 32}" text-anchor="middle">{title}</text>\n')
    for number, (curve, style) in enumerate(zip(curves, _STYLES, strict=False)):
        path = " ".join(f"{x} {y}" for x, y in (place(*point) for point in curve.points))
        parts.append(f'<polyline points="{path}" fill="none" stroke-width="1.6" {style}/>\n')
        x, y = left + _WIDTH - 130, 30 + 16 * number
        parts.append(f'<path d="M{x} {y - 4}h22" stroke-width="2" {style}/>\n')
        parts.append(f'<text x="{x + 28}" y="{y}">{curve.name}</text>\n')
    return "".join(parts)


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers that lie between the two."""
    rough = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def main(arguments: Sequence[str]) -> None:
    if arguments:
        runs = dict(argument.split("=", 1) for argument in arguments[1:])
        Path(arguments[0]).write_text(draw({name: Path(path) for name, path in runs.items()}))
        return
    for name, sources in DRAWINGS.items():
        runs_here = {label: EXPERIMENTS / source for label, source in sources.items()}
        (EXPERIMENTS / name).write_text(draw(runs_here), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
