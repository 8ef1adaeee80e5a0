"""Draws validation loss by step and by wall clock, from the metrics of runs, as one SVG file.

    python tools/draw_learning_curves.py OUT.svg NAME=metrics.jsonl …

Without arguments, the pictures in docs/experiments are made anew from the metrics beside them.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from groundup.experiments.report.charts import Chart, Line
from groundup.experiments.report.pictures import draw_picture
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
# The first steps would press all that follows into the lowest tenth.
_HIGHEST_LOSS = 7.0


def draw(runs: dict[str, Path]) -> str:
    """Two panels side by side: the loss by step, and by seconds."""
    axes = {"step": "steps", "wall_seconds": "seconds"}
    return draw_picture([_chart(runs, key, name) for key, name in axes.items()])


def _chart(runs: dict[str, Path], key: str, x_name: str) -> Chart:
    lines = []
    for style, (label, path) in enumerate(runs.items()):
        metric = "loss" if label == "training" else "validation_loss"
        metrics = read_metrics(path)
        xs, ys = metrics.column(key), metrics.column(metric)
        points = ((xs[index], ys[index]) for index in metrics.indices(metric))
        kept = tuple(point for point in points if point[1] < _HIGHEST_LOSS)
        lines.append(Line(label, kept, style, has_markers=False))
    return Chart(f"loss by {x_name}", x_name, "loss", tuple(lines))


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
