"""Charts by plotly and by matplotlib: well formed and harmless, whatever they hold."""

import json
import math
from collections.abc import Sequence
from xml.etree import ElementTree

import pytest

from groundup.experiments.report.charts import (
    Chart,
    Line,
    chart_over,
    crosses_of,
    plotly_figure,
    y_range_of,
)

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert('&')</script>$\\x$\0\ud800]]>"


def chart_of(lines: Sequence[Line], **options: object) -> Chart:
    return Chart(HOSTILE, HOSTILE, "Loss", tuple(lines), HOSTILE, **options)  # type: ignore[arg-type]


def texts_of(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    assert not [element for element in root.iter() if element.tag.endswith("script")]
    return ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]


@pytest.fixture
def full_chart() -> Chart:
    """Everything that a chart can hold."""
    points = ((0.1, 3.0), (1.0, 2.0), (10.0, 2.5))
    lines = [
        Line(HOSTILE, points, 0, half_widths=(0.1, None, 0.2), stars=((1.0, 2.0),)),
        Line("b", points, 1, crosses=(100.0,), hollow=frozenset([1.0]), threads=(points, ())),
        Line("c", points, None, band=tuple((x, y - 1, y + 1) for x, y in points)),
        Line("d", ((0.1, 2.0), (1.0, 99.0)), None, is_diverged=True, has_markers=False),
        Line("e", (), 9, crosses=(0.1,)),
    ]
    return chart_of(lines, is_log=True, is_percent=True, references=(2.2,), y_range=(1.5, 4.0))


def test_plotly_takes_every_chart_and_no_label_is_a_tag(full_chart: Chart) -> None:
    graph_objects = pytest.importorskip("plotly.graph_objects")
    figure = plotly_figure(full_chart)
    text = json.dumps(figure, allow_nan=False)
    assert "<script" not in text and "&lt;script" in text
    plain = json.loads(text.replace("var(--line-strong)", "red").replace("var(--line)", "red"))
    plain["layout"]["font"]["color"] = plain["layout"]["modebar"]["color"] = "red"
    plain["layout"]["shapes"][0]["line"]["color"] = "red"
    graph_objects.Figure(plain)
    assert [trace["name"] for trace in figure["data"]].count("d") == 2


def test_a_cross_at_the_top_is_inside_the_range() -> None:
    for high in (2.70001, 2.70004, 2.70006, 2.70009, 123.456789):
        chart = chart_over("rate", "Loss", [Line("", ((1.0, 2.0), (2.0, high)), crosses=(4.0,))])
        figure = plotly_figure(chart)
        (top,) = figure["data"][-1]["y"]
        assert high < top <= figure["layout"]["yaxis"]["range"][1]


def test_lines_are_told_apart_without_color() -> None:
    looks = {(Line("", (), style).marker, Line("", (), style).dash) for style in range(8)}
    assert len(looks) == 8


def test_a_line_that_leaves_the_chart_is_marked_where_it_does() -> None:
    points = ((0.0, 9.0), (1.0, 2.0), (4.0, 2.5), (6.0, 90.0), (9.0, 99.0))
    chart = chart_of([Line("wild", points, is_diverged=True)], y_range=(1.0, 3.0))
    ((x, y),) = crosses_of(chart.lines[0], chart)
    assert 4.0 < x < 4.1 and y == 3.0
    ((x, y),) = crosses_of(Line("calm", points[1:3], is_diverged=True), chart)
    assert (x, y) == (4.0, 2.5)


def test_values_far_above_nearly_all_others_lie_above_the_chart() -> None:
    assert y_range_of([], 2.5) is None
    near = y_range_of([Line("near", ((1, 9.0), (2, 2.1), (3, 2.0)), 0)], 2.5)
    assert near is not None and near[1] > 9.0
    falling = tuple((float(x), 2.0 + (90.0 if x < 2 else 0.0) + x / 100) for x in range(50))
    lines = [Line("far", falling, 0), Line("wild", ((1.0, 1e9),), is_diverged=True)]
    far, whole = y_range_of(lines, 2.5), y_range_of(lines, math.inf)
    assert far is not None and far[1] < 4.0
    assert whole is not None and 92.0 < whole[1] < 200.0
