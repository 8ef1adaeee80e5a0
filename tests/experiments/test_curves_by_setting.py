"""Losses over a varied setting: which drawing is made, what it says, and that it is well formed."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.experiments.report.curves_by_setting import (
    SettingChart,
    SettingLine,
    SettingPoint,
    are_geometric,
    chart_of,
    describe,
)
from groundup.experiments.report.curves_by_setting_svg import draw_setting_chart, draw_setting_file
from groundup.experiments.report.curves_svg import NARROW, WIDE
from groundup.experiments.results.groups import Group, group_runs
from groundup.experiments.results.run_result import read_run
from groundup.experiments.results.statistics import Interval

SVG = "{http://www.w3.org/2000/svg}"
RATE, SIZE = "optimizer.learning_rate", "batch_size"


def groups_of(
    folder: Path, runs: list[tuple[dict[str, Any], float | None]], variants: tuple[str, ...] = ()
) -> list[Group]:
    """Groups of runs with these settings, which end at these losses; None diverges."""
    results = []
    for number, (settings, loss) in enumerate(runs):
        path = folder / f"run{number}"
        path.mkdir()
        (path / "config.yaml").write_text(json.dumps(settings))
        (path / "environment.json").write_text('{"data": {"content": "sha256:aa"}}')
        lines = [{"step": 1, "loss": 9.0}, {"step": 2, "loss": loss, "validation_loss": loss}]
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        trial = {"variant": variants[number]} if variants else None
        results.append(read_run(path, trial=trial))
    return group_runs(results, "validation_loss")


def chart(*lines: list[SettingPoint]) -> SettingChart:
    drawn = [SettingLine(f"line {n}", n, tuple(points)) for n, points in enumerate(lines)]
    return SettingChart("rate", "Best loss", tuple(drawn))


def point(x: float, mean: float | None, width: float | None = None, **marks: Any) -> SettingPoint:
    return SettingPoint(x, None if mean is None else Interval(mean, width, 3), **marks)


def height_of(path: ElementTree.Element) -> float:
    return float(path.get("d", "").split("a")[0].split("l")[0].split("h")[0].split()[1])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1e-3, 1e-2, 1e-1], True),
        ([3e-4, 1e-3, 3e-3, 1e-2], True),
        ([1.0, 4.0, 16.0, 64.0, 7168.0], True),
        ([0.1, 0.2, 0.3, 0.4, 0.5], False),
        ([8.0, 16.0], False),
        ([0.0, 0.1, 1.0], False),
        ([5.0], False),
    ],
)
def test_values_apart_by_ratio_get_a_log_axis(values: list[float], expected: bool) -> None:
    assert are_geometric(values) is expected


def test_one_numeric_setting_is_one_line_from_the_least_value_up(tmp_path: Path) -> None:
    runs = [
        ({RATE: rate, "seed": 0}, loss) for rate, loss in ((0.1, 3.0), (0.01, 2.0), (9.0, None))
    ]
    found = chart_of(groups_of(tmp_path, runs), [RATE], "validation loss")
    assert found is not None and found.is_log
    (line,) = found.lines
    assert [(p.x, p.loss and p.loss.mean, p.num_diverged) for p in line.points] == [
        (0.01, 2.0, 0),
        (0.1, 3.0, 0),
        (9.0, None, 1),
    ]
    assert [p.is_best for p in line.points] == [True, False, False]
    assert describe(found) == (
        "Best validation loss by learning rate: lowest at learning rate 0.01 with 2.0000 and "
        "divergence at 9."
    )


def test_a_second_numeric_setting_makes_a_line_for_each_of_its_values(tmp_path: Path) -> None:
    runs = [({SIZE: size, RATE: rate}, 3.0) for rate in (0.2, 0.1) for size in (1, 8, 64)]
    found = chart_of(groups_of(tmp_path, runs), [SIZE, RATE], "loss")
    assert found is not None
    assert found.x_name == "batch size"
    assert [line.label for line in found.lines] == ["learning rate 0.1", "learning rate 0.2"]
    assert all(len(line.points) == 3 for line in found.lines)


def test_variants_make_a_line_each(tmp_path: Path) -> None:
    runs = [
        ({RATE: rate, "clip": clip}, 2.0 + rate + (clip or 0))
        for clip in (1, None)
        for rate in (0.1, 1.0)
    ]
    groups = groups_of(tmp_path, runs, ("clipped", "clipped", "free", "free"))
    found = chart_of(groups, [RATE], "loss")
    assert found is not None
    assert {line.label for line in found.lines} == {"clipped", "free"}


def test_lengths_in_steps_that_follow_from_the_rest_are_no_second_setting(tmp_path: Path) -> None:
    runs = [({SIZE: size, "num_steps": 64 // size}, 3.0) for size in (1, 2, 8)]
    found = chart_of(groups_of(tmp_path, runs), None, "loss")
    assert found is not None and found.x_name == "batch size"


@pytest.mark.parametrize(
    "settings",
    [
        [{"optimizer.name": name} for name in ("adamw", "muon")],
        [{"a": a, "b": b, "c": c} for a in (1, 2) for b in (1, 2) for c in (1, 2)],
        [{"a": number, "b": number / 7} for number in range(5)],
        [{"a": flag} for flag in (True, False)],
        [{"a": 1}],
    ],
)
def test_what_is_no_line_over_a_number_is_not_drawn(
    tmp_path: Path, settings: list[dict[str, Any]]
) -> None:
    groups = groups_of(tmp_path, [(one, 3.0) for one in settings])
    assert chart_of(groups, list(settings[0]), "loss") is None
    assert chart_of(groups, None, "loss") is None


def test_divergences_stand_above_every_loss() -> None:
    drawn = chart(
        [
            point(0.1, 2.0, 0.1),
            point(1.0, 3.0, 0.5, num_diverged=1),
            point(9.0, None, num_diverged=3),
        ]
    )
    for size in (WIDE, NARROW):
        root = ElementTree.fromstring(draw_setting_chart(drawn, size))
        paths = list(root.iter(f"{SVG}path"))
        crosses = [height_of(path) for path in paths if path.get("class") == "cross"]
        marks = [height_of(path) for path in paths if path.get("class") == "mark"]
        assert (len(crosses), len(marks)) == (2, 2)
        assert max(crosses) + 10 < min(marks)


def test_an_interval_is_a_bar_and_one_measurement_has_none() -> None:
    drawn = chart([point(1.0, 2.0, 0.2), point(2.0, 2.5), point(3.0, 3.0, 0.1)])
    root = ElementTree.fromstring(draw_setting_chart(drawn))
    assert len([path for path in root.iter(f"{SVG}path") if path.get("class") == "bar"]) == 2


def test_what_has_not_ended_is_hollow_and_the_best_has_a_star() -> None:
    drawn = chart([point(1.0, 2.0, is_best=True), point(2.0, 1.5, is_open=True)])
    text = draw_setting_chart(drawn)
    assert text.count('class="mark open"') == 1
    assert text.count("★") == 1


def test_the_star_stands_below_the_best_point_and_above_the_axis() -> None:
    for width in (None, 0.4):
        drawn = chart([point(1.0, 2.0, width, is_best=True), point(2.0, 2.1), point(3.0, 5.0)])
        root = ElementTree.fromstring(draw_setting_chart(drawn))
        (star,) = (text for text in root.iter(f"{SVG}text") if text.text == "★")
        marks = [height_of(path) for path in root.iter(f"{SVG}path") if path.get("class") == "mark"]
        (floor,) = (path for path in root.iter(f"{SVG}path") if path.get("class") == "floor")
        bottom = float(floor.get("d", "").split()[1].split("H")[0])
        assert max(marks) + 10 < float(star.get("y", "")) < bottom


def test_points_that_do_not_stand_at_their_value_are_said_to() -> None:
    lines = [[point(1.0, 2.0 + place, 0.1), point(2.0, 3.0, 0.1)] for place in range(3)]
    assert "set apart" in draw_setting_chart(chart(*lines), WIDE)
    assert "set apart" not in draw_setting_chart(chart(lines[0]), WIDE)
    bare = [[point(1.0, 2.0 + place), point(2.0, 3.0)] for place in range(3)]
    assert "set apart" not in draw_setting_chart(chart(*bare), WIDE)


def test_words_about_the_lowest_are_of_what_has_ended() -> None:
    line = [point(1.0, 2.0), point(2.0, 1.5, is_open=True)]
    assert "lowest at rate 1 with 2.0000" in describe(chart(line))
    assert "lowest at rate 2 with 1.5000 so far" in describe(chart(line[1:]))


def test_a_loss_far_away_does_not_press_the_others_together() -> None:
    drawn = chart([point(x, y) for x, y in enumerate([2.0, 2.1, 2.2, 2.3, 900.0], start=1)])
    root = ElementTree.fromstring(draw_setting_chart(drawn))
    marks = [height_of(path) for path in root.iter(f"{SVG}path") if path.get("class") == "mark"]
    assert len(marks) == 4
    assert max(marks) - min(marks) > 60


@given(
    st.lists(
        st.tuples(st.floats(1e-6, 1e6), st.none() | st.floats(0.01, 1e6)), min_size=1, max_size=9
    ),
    st.none() | st.floats(0, 1e9),
)
def test_any_losses_make_a_well_formed_drawing(
    values: list[tuple[float, float | None]], width: float | None
) -> None:
    points = [point(x, y, width, num_diverged=int(y is None)) for x, y in values]
    for size in (WIDE, NARROW):
        text = draw_setting_chart(chart(points, points[:1]), size)
        ElementTree.fromstring(text)
        assert "nan" not in text and "inf" not in text


def test_a_drawing_is_well_formed_whatever_labels_say() -> None:
    label = "<script>alert('&')</script>\0\ud800]]>"
    line = SettingLine(label, 0, (point(1.0, 2.0), point(2.0, 3.0)))
    drawn = SettingChart(label, "Loss", (line, line))
    root = ElementTree.fromstring(draw_setting_file(drawn))
    assert not [element for element in root.iter() if element.tag.endswith("script")]
