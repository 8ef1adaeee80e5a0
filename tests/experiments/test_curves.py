"""Learning curves: no spike lost, seeds averaged, what is no number left out."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.experiments.report.charts import Line
from groundup.experiments.report.curves import (
    learning_curves,
    smooth,
    thin_evenly,
    thin_to_extremes,
)
from groundup.experiments.results.groups import Group
from groundup.experiments.results.run_result import Standing, read_run

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


def line_of(*runs: Any, metric: str = "loss", axis: Any = "step") -> Line:
    """The curve of runs that differ by their seed."""
    (line,) = learning_curves([Group("group", tuple(runs), {}, "loss")], metric, "Loss")[axis].lines
    return line


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


def test_seeds_become_a_mean_with_a_band(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, [4.0 + seed, 2.0 + seed], f"run{seed}") for seed in range(3)]
    curve = line_of(*runs, axis="tokens")
    assert curve.points == ((100.0, 5.0), (200.0, 3.0))
    assert [x for x, _, _ in curve.band] == [100.0, 200.0]
    assert curve.band[0][1] == pytest.approx(5 - 4.30265 / math.sqrt(3), rel=1e-5)
    assert len(curve.threads) == 3


def test_two_seeds_are_threads_without_a_band(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, [4.0 + seed, 2.0 + seed], f"run{seed}") for seed in range(2)]
    curve = line_of(*runs)
    assert curve.points == ((1.0, 4.5), (2.0, 2.5))
    assert curve.band == () and len(curve.threads) == 2


def test_only_steps_that_all_seeds_have_are_averaged(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, [4.0, 3.0, 2.0], "long"), run_of(tmp_path, [4.0, 3.5], "short")]
    curve = line_of(*runs)
    assert [x for x, _ in curve.points] == [1.0, 2.0]


def test_a_seed_that_was_stopped_does_not_cut_the_others_short(tmp_path: Path) -> None:
    stopped = run_of(tmp_path, [9.0, 9.0], "c")
    stopped = replace(stopped, outcome=Standing("unfinished", "It ended after step 2 of 4."))
    done = [run_of(tmp_path, [4.0, 3.0, 2.0, 1.0], name) for name in "ab"]
    curve = line_of(stopped, *done)
    assert curve.points == ((1.0, 4.0), (2.0, 3.0), (3.0, 2.0), (4.0, 1.0))
    assert curve.band == ()
    assert len(curve.threads) == 3


def test_runs_measured_at_different_steps_are_averaged_between_them(tmp_path: Path) -> None:
    lines = {"one": [(2, 4.0), (6, 2.0)], "other": [(1, 6.0), (3, 4.0), (7, 2.0)]}
    for name, points in lines.items():
        text = "".join(f'{{"step": {step}, "validation_loss": {y}}}\n' for step, y in points)
        (tmp_path / f"{name}.jsonl").write_text(text)
    runs = [read_run(tmp_path / f"{name}.jsonl") for name in lines]
    curve = line_of(*runs, metric="validation_loss")
    assert curve.points == ((2.0, 4.5), (6.0, 2.25))


def test_what_is_no_number_is_not_shown(tmp_path: Path) -> None:
    run = run_of(tmp_path, [4.0, None, 3.0, math.nan, math.inf, 2.0])
    for axis in ("step", "tokens", "wall_seconds"):
        assert [y for _, y in line_of(run, axis=axis).points] == [4.0, 3.0, 2.0]


def test_a_group_without_the_metric_has_no_curve(tmp_path: Path) -> None:
    group = Group("group", (run_of(tmp_path, [4.0, 3.0]),), {}, "loss")
    assert learning_curves([group], "validation_loss", "Loss") == {}


def test_a_long_wall_clock_is_told_in_hours(tmp_path: Path) -> None:
    text = "".join(
        json.dumps({"step": step, "wall_seconds": 3600.0 * step, "loss": 3.0}) + "\n"
        for step in range(1, 5)
    )
    (tmp_path / "long.jsonl").write_text(text)
    group = Group("group", (read_run(tmp_path / "long.jsonl"),), {}, "loss")
    chart = learning_curves([group], "loss", "Loss")["wall_seconds"]
    assert chart.x_name == "hours" and [x for x, _ in chart.lines[0].points] == [1, 2, 3, 4]
    assert chart.description == "Loss by wall clock: group ends at 3.0000."


def test_a_spike_of_one_line_in_many_is_still_drawn(tmp_path: Path) -> None:
    losses: list[float | None] = [3.0] * 20_000
    losses[12_345] = 9.0
    curve = line_of(run_of(tmp_path, losses))
    assert (12_346.0, 9.0) in curve.threads[0]
    assert len(curve.points) < 1_000 and len(curve.threads[0]) < 1_000


def test_the_first_of_few_evaluations_are_on_the_chart(tmp_path: Path) -> None:
    def top(*losses: float) -> float:
        group = Group("group", (run_of(tmp_path, [*losses]),), {}, "loss")
        chart = learning_curves([group], "loss", "Loss")["step"]
        assert chart.y_range is not None
        return chart.y_range[1]

    assert top(10.8, 3.6, 3.5) > 10.8 and top(10.8, 3.6, 3.55, 3.5, 3.45) > 10.8
    assert top(10.8, 9.0, *(3.5 + 1 / (n + 2) for n in range(40))) < 9.0
