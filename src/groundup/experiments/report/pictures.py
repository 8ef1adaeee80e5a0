"""Charts as SVG files by matplotlib, for Markdown pages. Needs the extra `report`."""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from groundup.errors import MissingExtraError
from groundup.experiments.report.charts import Chart, Line, columns_of, crosses_of
from groundup.experiments.report.text import shorten, show_count, visible
from groundup.model.config import ModelConfig
from groundup.planner.flops import fractions_by_context, fractions_by_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS, _DASHES = ("o", "s", "^", "D"), ("-", "-", "--", ":")
_MOST_LABELS, _LONGEST_LABEL = 16, 40
# Lightness falls from one to the next, so that they are told apart without color too.
_FRACTION_COLORS = ("#c6dbef", "#fd8d3c", "#4292c6", "#08306b")
_INK, _MUTED, _RULE = "#181c1a", "#535b56", "#dde1db"
_SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "groundup",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": _MUTED,
    "axes.labelcolor": _MUTED,
    "axes.edgecolor": "#858d87",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "legend.frameon": False,
}


@contextmanager
def new_figure(width: float, height: float) -> Iterator["Figure"]:
    """A figure of this size in inches, with the settings of all pictures."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("a picture (package matplotlib)", "report") from error
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        # The viewer's fonts may have glyphs that matplotlib's own lack.
        warnings.filterwarnings("ignore", message="Glyph")
        yield Figure(figsize=(width, height), layout="constrained", facecolor="white")


def as_svg(figure: "Figure") -> str:
    """The figure as text, which is the same whenever it is made."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Creator": "groundup report", "Date": None})
    return file.getvalue()


def draw_picture(charts: Sequence[Chart]) -> str:
    """One chart, or several as panels in two columns with one legend."""
    num_rows = (len(charts) + 1) // 2
    with new_figure(9.2, 4.0 if len(charts) == 1 else 0.5 + 2.8 * num_rows) as figure:
        axes = figure.subplots(num_rows, min(2, len(charts)), squeeze=False).ravel()
        for axis, chart in zip(axes, charts, strict=False):
            _draw_chart(axis, chart, has_title=len(charts) > 1)
        for axis in axes[len(charts) :]:
            axis.set_visible(False)
        handles, labels = axes[0].get_legend_handles_labels()
        if len(labels) > 1:
            where: dict[str, Any] = {"loc": "outside right upper"}
            if len(charts) > 1:
                where = {"loc": "outside upper left", "ncols": min(4, len(labels))}
            handles, labels = handles[::-1][:_MOST_LABELS], labels[::-1][:_MOST_LABELS]
            figure.legend(handles, labels, **where)
        return as_svg(figure)


def draw_flop_fractions(config: ModelConfig, name: str = "the model") -> str:
    """How a forward pass divides among its components: GPT-2's sizes, and a model at growing
    context lengths."""
    sizes = {size.removeprefix("gpt2-"): one for size, one in fractions_by_size().items()}
    contexts = {f"{length:,}": one for length, one in fractions_by_context(config).items()}
    panels = {
        "by size, GPT-2 at context 1,024": sizes,
        f"by context length, {name}": contexts,
    }
    with new_figure(9.2, 3.6) as figure:
        axes = figure.subplots(1, 2)
        for axis, (title, bars) in zip(axes, panels.items(), strict=True):
            below = [0.0] * len(bars)
            for number, part in enumerate(next(iter(bars.values()))):
                heights = [bar[part] for bar in bars.values()]
                look = {"color": _FRACTION_COLORS[number], "label": part.replace("_", " ")}
                stacked = axis.bar(list(bars), heights, 0.7, below, **look)
                told = [f"{height:.0%}" if height >= 0.05 else "" for height in heights]
                ink = _INK if number < 2 else "white"
                axis.bar_label(stacked, told, label_type="center", color=ink, size=8)
                below = [low + height for low, height in zip(below, heights, strict=True)]
            axis.set_title(visible(title))
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=4)
        return as_svg(figure)


def _draw_chart(axes: "Axes", chart: Chart, *, has_title: bool) -> None:
    axes.grid(axis="y", color=_RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    for number, y in enumerate(chart.references):
        label = "" if number else "reference text"
        axes.axhline(y, color=_MUTED, linestyle="--", linewidth=1, label=label)
    for line in reversed(chart.lines):
        _draw_line(axes, line, chart)
    if chart.y_range:
        axes.set_ylim(*chart.y_range)
    if chart.is_log:
        axes.set_xscale("log")
        values = chart.x_values
        step = 1 + len(values) // 12
        axes.set_xticks(values[::step], [_show_tick(value, None) for value in values[::step]])
        axes.minorticks_off()
    else:
        axes.xaxis.set_major_formatter(_show_tick)
    if chart.is_percent:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%")
    axes.set_xlabel(visible(chart.x_name) + (", log scale" if chart.is_log else ""))
    if has_title:
        axes.set_title(visible(chart.title))
    else:
        axes.set_ylabel(visible(chart.y_name))


def _draw_line(axes: "Axes", line: Line, chart: Chart) -> None:
    in_front = {"zorder": 2 if line.style is None else 3}
    if line.band:
        xs, low, high = zip(*line.band, strict=True)
        axes.fill_between(xs, low, high, color=line.color, alpha=0.14, linewidth=0)
    for thread in line.threads:
        if thread:
            axes.plot(*zip(*thread, strict=True), color=line.color, alpha=0.35, linewidth=0.8)
    look: dict[str, Any] = {
        "color": line.color,
        "linestyle": _DASHES[line.dash],
        **in_front,
        "linewidth": 1.2 if line.style is None else 1.8,
        "label": shorten(visible(("✕ " if line.is_diverged else "") + line.label), _LONGEST_LABEL),
    }
    xs, ys = zip(*line.points, strict=True) if line.points else ((), ())
    if not line.has_markers:
        axes.plot(xs, ys, **look)
    else:
        look |= {"marker": _MARKERS[line.marker], "markersize": 5}
        widths = [width or 0.0 for width in line.half_widths] or None
        axes.errorbar(xs, ys, yerr=widths, capsize=3, elinewidth=1.2, **look)
        hollow = [(x, y) for x, y in line.points if x in line.hollow]
        axes.plot(*columns_of(hollow), look["marker"], color=line.color, mfc="white", zorder=4)
    look = {"color": line.color, "linestyle": "", "zorder": 5}
    if line.stars:
        axes.plot(*columns_of(line.stars), marker="*", markersize=15, mec="white", **look)
    if crosses := crosses_of(line, chart):
        axes.plot(*columns_of(crosses), marker="x", markersize=8, mew=2, clip_on=False, **look)


def _show_tick(value: float, _: object) -> str:
    return show_count(value) if abs(value) >= 1e4 else f"{value:.4g}"
