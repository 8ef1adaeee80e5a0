"""Charts of a report: what is averaged, what is shown, and that plotly can read it."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.experiments.groups import Group, choose_measure, group_runs
from groundup.experiments.report.charts import learning_curves, setting_chart, smooth
from groundup.experiments.run_finding import find_runs

WriteRun = Callable[..., Path]
RATE = "optimizer.learning_rate"


def groups_of(folder: Path) -> list[Group]:
    runs = find_runs([folder]).runs
    return group_runs(runs, choose_measure(runs))


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=50), st.integers(0, 20))
def test_smoothing_stays_within_the_values_and_keeps_the_first(
    values: list[float], reach: int
) -> None:
    smoothed = smooth(values, reach)
    assert len(smoothed) == len(values) and smoothed[0] == pytest.approx(values[0], abs=1e-6)
    assert min(values) - 1e-6 <= min(smoothed) and max(smoothed) <= max(values) + 1e-6


@pytest.mark.parametrize("num_seeds", [1, 2, 3])
def test_seeds_become_a_mean_with_a_band_from_three_on(
    tmp_path: Path, write_run: WriteRun, num_seeds: int
) -> None:
    for seed in range(num_seeds):
        write_run(tmp_path / f"s{seed}", [4.0, 3.0, 2.0 + seed], seed=seed)
    figure = learning_curves(groups_of(tmp_path), "validation_loss", "Validation loss")
    assert figure is not None
    data = figure["data"]
    assert len(data) == {1: 1, 2: 3, 3: 5}[num_seeds]
    assert data[-1]["y"][-1] == pytest.approx(2 + (num_seeds - 1) / 2)
    assert sum("fill" in one for one in data) == (num_seeds == 3)
    axes = {
        button["label"]: button["args"][0]["x"]
        for button in figure["layout"]["updatemenus"][0]["buttons"]
    }
    assert [xs[-1][-1] for xs in axes.values()] == [3, 3 * 8192, 6.0]
    json.dumps(figure, allow_nan=False)


def test_only_steps_that_all_seeds_have_are_averaged(tmp_path: Path, write_run: WriteRun) -> None:
    write_run(tmp_path / "long", [4.0, 3.0, 2.0, 1.0], seed=0)
    write_run(tmp_path / "short", [4.0, 3.0], seed=1, num_steps=4)
    figure = learning_curves(groups_of(tmp_path), "loss", "Loss")
    assert figure is not None and figure["data"][-1]["x"] == [1, 2]


def test_a_metric_that_no_run_has_is_no_chart(tmp_path: Path, write_run: WriteRun) -> None:
    write_run(tmp_path / "one", [4.0, math.nan, None])
    assert learning_curves(groups_of(tmp_path), "learning_rate", "Learning rate") is None


def test_a_steep_beginning_does_not_press_a_long_curve_together(
    tmp_path: Path, write_run: WriteRun
) -> None:
    write_run(tmp_path / "one", [90.0, *[3.0 - step / 100 for step in range(60)]])
    figure = learning_curves(groups_of(tmp_path), "validation_loss", "Loss")
    assert figure is not None and figure["layout"]["yaxis"]["range"][1] < 10


def write_grid(folder: Path, write_run: WriteRun, **values: list[Any]) -> None:
    for rate in values["rates"]:
        for size in values.get("sizes", [8]):
            losses = [9.0, 2.0 + rate] if rate < 0.3 else [9.0, None]
            settings = {"batch_size": size, "optimizer": {"learning_rate": rate}}
            write_run(folder / f"r{rate}b{size}", losses, **settings)


def test_the_loss_over_a_setting_has_a_line_for_each_value_of_a_second(
    tmp_path: Path, write_run: WriteRun
) -> None:
    write_grid(tmp_path, write_run, rates=[0.001, 0.01, 0.1, 0.5], sizes=[4, 8])
    figure = setting_chart(groups_of(tmp_path), [RATE, "batch_size"], "validation loss")
    assert figure is not None and figure["layout"]["xaxis"]["type"] == "log"
    lines = {one["name"]: one for one in figure["data"]}
    assert set(lines) == {f"batch size {n}{d}" for n in (4, 8) for d in ("", " diverged")}
    assert lines["batch size 8"]["x"] == [0.001, 0.01, 0.1]
    assert lines["batch size 8 diverged"]["x"] == [0.5]
    json.dumps(figure, allow_nan=False)


@pytest.mark.parametrize("varied", [["optimizer.name"], [], ["batch_size", RATE, "z_loss"]])
def test_what_is_no_line_over_a_number_has_no_chart(
    tmp_path: Path, write_run: WriteRun, varied: list[str]
) -> None:
    write_run(tmp_path / "a", [2.0], optimizer={"name": "muon"})
    write_run(tmp_path / "b", [3.0], optimizer={"name": "adamw"})
    assert setting_chart(groups_of(tmp_path), varied, "loss") is None
