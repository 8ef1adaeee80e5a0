"""Curves and their drawings: no spike lost, seeds averaged, labels apart, always well formed."""

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.experiments.report.curves import (
    AXES,
    Curve,
    curves_of,
    smooth,
    thin_evenly,
    thin_to_extremes,
)
from groundup.experiments.report.curves_svg import (
    NARROW,
    WIDE,
    draw_chart,
    draw_file,
    draw_key,
    ticks,
)
from groundup.experiments.results.groups import Group
from groundup.experiments.results.run_result import read_run
from groundup.experiments.results.run_standing import Standing

SVG = "{http://www.w3.org/2000/svg}"
LOSSES = st.lists(st.floats(0.1, 20.0), min_size=1, max_size=300)


def run_of(path: Path, losses: list[float | None], name: str = "run") -> Any:
    lines = [
        json.dumps({"step": step, "tokens": 100 * step, "wall_seconds": step / 3, "loss": loss})
        for step, loss in enumerate(losses, start=1)
    ]
    path.mkdir(parents=True, exist_ok=True)
    file = path / f"{name}.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return read_run(file)


def group_of(*runs: Any, label: str = "group") -> Group:
    return Group(label, tuple(runs), {}, "loss")


@given(LOSSES, st.integers(2, 50))
def test_thinning_keeps_every_extreme(values: list[float], num_points: int) -> None:
    kept = thin_to_extremes(values, num_points)
    assert kept == sorted(set(kept))
    assert {0, len(values) - 1} <= set(kept)
    chosen = [values[place] for place in kept]
    assert (min(chosen), max(chosen)) == (min(values), max(values))
    assert len(kept) <= num_points + 2


@given(st.integers(1, 500), st.integers(2, 100))
def test_even_thinning_keeps_both_ends(count: int, num_points: int) -> None:
    kept = thin_evenly(count, num_points)
    assert (kept[0], kept[-1], len(kept)) == (0, count - 1, min(count, num_points))


@given(LOSSES, st.integers(0, 20))
def test_smoothing_stays_within_the_values_and_keeps_the_first(
    values: list[float], reach: int
) -> None:
    smoothed = smooth(values, reach)
    assert len(smoothed) == len(values)
    assert min(values) - 1e-9 <= min(smoothed) and max(smoothed) <= max(values) + 1e-9
    assert smoothed[0] == pytest.approx(values[0])
    assert smoothed[-1] == pytest.approx(sum(values[-reach - 1 :]) / len(values[-reach - 1 :]))


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e6))
def test_ticks_are_few_and_inside(low: float, width: float) -> None:
    high = low + width
    marks = ticks(low, high)
    assert len(marks) <= 8
    assert all(low - width * 1e-6 <= mark <= high + width * 1e-6 for mark in marks)


def test_seeds_become_a_mean_with_a_band(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, [4.0 + seed, 2.0 + seed], f"run{seed}") for seed in range(3)]
    curve = curves_of([group_of(*runs)], "loss")["tokens"][0]
    assert curve.line == ((100.0, 5.0), (200.0, 3.0))
    assert [x for x, _, _ in curve.band] == [100.0, 200.0]
    assert curve.band[0][1] == pytest.approx(5 - 4.30265 / math.sqrt(3), rel=1e-5)
    assert len(curve.threads) == 3


def test_two_seeds_are_threads_without_a_band(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, [4.0 + seed, 2.0 + seed], f"run{seed}") for seed in range(2)]
    curve = curves_of([group_of(*runs)], "loss")["step"][0]
    assert curve.line == ((1.0, 4.5), (2.0, 2.5))
    assert curve.band == () and len(curve.threads) == 2


def test_only_steps_that_all_seeds_have_are_averaged(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, [4.0, 3.0, 2.0], "long"), run_of(tmp_path, [4.0, 3.5], "short")]
    curve = curves_of([group_of(*runs)], "loss")["step"][0]
    assert [x for x, _ in curve.line] == [1.0, 2.0]


def test_a_seed_that_was_stopped_does_not_cut_the_others_short(tmp_path: Path) -> None:
    stopped = run_of(tmp_path, [9.0, 9.0], "c")
    stopped = replace(stopped, outcome=Standing("unfinished", "It ended after step 2 of 4."))
    done = [run_of(tmp_path, [4.0, 3.0, 2.0, 1.0], name) for name in "ab"]
    (curve,) = curves_of([group_of(stopped, *done)], "loss")["step"]
    assert curve.line == ((1, 4.0), (2, 3.0), (3, 2.0), (4, 1.0)) and curve.band == ()
    assert len(curve.threads) == 3


def test_runs_measured_at_different_steps_are_averaged_between_them(tmp_path: Path) -> None:
    lines = {"one": [(2, 4.0), (6, 2.0)], "other": [(1, 6.0), (3, 4.0), (7, 2.0)]}
    for name, points in lines.items():
        text = "".join(f'{{"step": {step}, "validation_loss": {y}}}\n' for step, y in points)
        (tmp_path / f"{name}.jsonl").write_text(text)
    runs = [read_run(tmp_path / f"{name}.jsonl") for name in lines]
    curve = curves_of([group_of(*runs)], "validation_loss")["step"][0]
    assert curve.line == ((2.0, 4.5), (6.0, 2.25))


def test_what_is_no_number_is_not_drawn(tmp_path: Path) -> None:
    run = run_of(tmp_path, [4.0, None, 3.0, math.nan, math.inf, 2.0])
    for curves in curves_of([group_of(run)], "loss").values():
        assert [y for _, y in curves[0].line] == [4.0, 3.0, 2.0]
        assert "nan" not in draw_chart(curves, "step", "Loss")


def test_a_group_without_the_figure_has_no_curve(tmp_path: Path) -> None:
    run = run_of(tmp_path, [4.0, 3.0])
    assert not any(curves_of([group_of(run)], "validation_loss").values())
    assert draw_chart([], "step", "Loss") == ""


def test_a_drawing_is_well_formed_whatever_labels_say(tmp_path: Path) -> None:
    run = run_of(tmp_path, [4.0, 3.0])
    label = "<script>alert('&')</script>\0\ud800]]>"
    for axis, curves in curves_of([group_of(run, label=label)], "loss").items():
        root = ElementTree.fromstring(draw_file(curves, axis, "Loss"))
        assert root.tag == f"{SVG}svg"
        assert not [element for element in root.iter() if element.tag.endswith("script")]
        assert "alert('&')" in "".join(root.itertext())


def test_a_spike_of_one_line_in_many_is_still_drawn(tmp_path: Path) -> None:
    losses: list[float | None] = [3.0] * 20_000
    losses[12_345] = 9.0
    curve = curves_of([group_of(run_of(tmp_path, losses))], "loss")["step"][0]
    assert (12_346.0, 9.0) in curve.threads[0]
    assert len(curve.line) < 1_000 and len(curve.threads[0]) < 1_000


def test_curves_are_told_apart_without_colour() -> None:
    keys = {draw_key(Curve("one", slot, ((0.0, 1.0),))) for slot in range(8)}
    assert len(keys) == 8
    diverged = draw_key(Curve("one", None, ((0.0, 1.0),), is_diverged=True))
    assert 'class="cross"' in diverged


def test_labels_at_the_ends_do_not_overlap() -> None:
    curves = [Curve(f"run {place}", place, ((0.0, 5.0), (9.0, 2.0))) for place in range(8)]
    root = ElementTree.fromstring(draw_chart(curves, "step", "Loss", WIDE))
    labels = [text for text in root.iter(f"{SVG}text") if "label" in text.get("class", "")]
    places = sorted(float(label.get("y", "")) for label in labels)
    assert len(places) == 8
    assert all(later - earlier >= 14.9 for earlier, later in pairwise(places))
    assert places[0] > 0 and places[-1] < WIDE.height


def test_long_labels_keep_what_tells_them_apart() -> None:
    curves = [
        Curve(
            f"{way}, learning rate {rate}", None if rate == 9 else place, ((0.0, 5.0), (9.0, rate))
        )
        for place, (way, rate) in enumerate(
            (w, r) for w in ("clipped", "unclipped") for r in (1, 2)
        )
    ]
    root = ElementTree.fromstring(draw_chart(curves, "step", "Loss", WIDE))
    labels = [text.text for text in root.iter(f"{SVG}text") if "label" in text.get("class", "")]
    assert sorted(map(str, labels)) == ["clipped, 1", "clipped, 2", "unclipped, 1", "unclipped, 2"]


def test_the_curves_in_front_are_named_before_those_that_diverged() -> None:
    sound = [Curve(f"sound {place}", place, ((0.0, 5.0), (9.0, 2.0))) for place in range(8)]
    wild = [
        Curve(f"wild {place}", None, ((0.0, 5.0), (9.0, 99.0)), is_diverged=True)
        for place in range(9)
    ]
    chart = draw_chart([*wild, *sound], "step", "Loss", WIDE)
    assert all(f">sound {place}</text>" in chart for place in range(8))


def test_the_beginning_is_drawn_where_it_is_not_far_above_the_rest() -> None:
    root = ElementTree.fromstring(
        draw_chart([Curve("one", 0, ((1, 5.9), (2, 5.8), (3, 5.7)))], "step", "Loss")
    )
    (line,) = [path for path in root.iter(f"{SVG}path") if path.get("class") == "line"]
    heights = [float(part.split()[1]) for part in line.get("d", "")[1:].split("L")]
    assert min(heights) > WIDE.top


def test_a_curve_that_leaves_the_drawing_is_marked_where_it_does() -> None:
    calm = Curve("calm", 0, tuple((float(x), 2.0 + x / 10) for x in range(11)))
    wild = Curve("wild", None, ((0.0, 2.0), (4.0, 2.5), (6.0, 90.0), (9.0, 99.0)), is_diverged=True)
    root = ElementTree.fromstring(draw_chart([calm, wild], "step", "Loss", WIDE))
    (cross,) = [path for path in root.iter(f"{SVG}path") if path.get("class") == "cross"]
    across = (WIDE.width - WIDE.left - WIDE.right) / 10
    x = float(cross.get("d", "")[1:].split()[0]) + 5
    assert WIDE.left + 4 * across < x < WIDE.left + 5 * across


@pytest.mark.parametrize("points", [((5.0, 2.0),), ((0.0, 2.0),), ((1.0, 2.0), (2.0, 2.0))])
def test_flat_and_single_points_are_drawn(points: tuple[tuple[float, float], ...]) -> None:
    for axis in AXES:
        chart = draw_chart([Curve("one", 0, points)], axis, "Loss", NARROW)
        ElementTree.fromstring(chart)
        assert "nan" not in chart and "inf" not in chart
