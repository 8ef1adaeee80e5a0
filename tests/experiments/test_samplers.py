"""Optuna's samplers: each searches better than chance, and none loses its place at a kill."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from groundup.errors import ConfigError, DataError, MissingExtraError
from groundup.experiments.samplers import make_sampler
from groundup.experiments.spec import SweepConfig
from groundup.experiments.sweep import run_sweep
from groundup.experiments.trials import Point, TrialRecord

for package in ("optuna", "scipy", "cmaes"):
    pytest.importorskip(package)

RATE, DECAY = "optimizer.learning_rate", "optimizer.weight_decay"
RANGES = {RATE: {"low": 1e-4, "high": 1.0, "scale": "log"}, DECAY: {"low": 0.0, "high": 1.0}}
PACKAGES = {"tpe": "optuna", "gp": "scipy", "cmaes": "cmaes", "qmc": "scipy"}
LEARNERS = {"tpe": 26, "gp": 16, "cmaes": 26}


each_sampler = pytest.mark.parametrize("sampler", PACKAGES)


def loss_of(point: Point) -> float:
    """Least at a rate of 0.05 and a decay of 0.3."""
    away = math.log10(point.settings[RATE] / 0.05), 4 * (point.settings[DECAY] - 0.3)
    return away[0] ** 2 + away[1] ** 2


def finished(point: Point) -> list[TrialRecord]:
    return [TrialRecord("a", "a", "finished", 0, best_validation_loss=loss_of(point))]


def search(spec: SweepConfig, folder: Path, jobs: int = 1, most: int | None = None) -> list[Point]:
    """Every point of a search with so many under way at once; `most` stops it like a kill."""
    proposals = make_sampler(spec, folder)
    points: list[Point] = []
    running: list[Point] = []
    for point in proposals.points():
        points.append(point)
        running.append(point)
        if len(points) == most:
            break
        if len(running) == jobs:
            done = running.pop(0)
            proposals.tell(done, finished(done))
    return points


def test_learning_samplers_end_where_chance_would_not(make_spec: Any, tmp_path: Path) -> None:
    common = {"ranges": RANGES, "sampler_seed": 1}
    drawn = search(make_spec(sampler="random", num_trials=100, **common), tmp_path)
    chance = mean(map(loss_of, drawn))
    for name, num_trials in LEARNERS.items():
        (tmp_path / name).mkdir()
        spec = make_spec(sampler=name, num_trials=num_trials, **common)
        points = search(spec, tmp_path / name)
        assert mean(map(loss_of, points[-6:])) < chance / 2, name


def test_quasi_random_points_leave_no_gap(make_spec: Any, tmp_path: Path) -> None:
    points = search(make_spec(sampler="qmc", ranges=RANGES, num_trials=17), tmp_path)
    # After the first, which is drawn, sixteen points lie one in each field of a board.
    fields = {
        (int(4 + math.log10(point.settings[RATE])), int(4 * point.settings[DECAY]))
        for point in points[1:]
    }
    assert len(fields) == 16


@each_sampler
def test_a_search_that_was_killed_goes_on_as_if_nothing_had_happened(
    make_spec: Any, tmp_path: Path, sampler: str
) -> None:
    spec = make_spec(sampler=sampler, ranges=RANGES, num_trials=13)
    (tmp_path / "whole").mkdir()
    whole = search(spec, tmp_path / "whole")
    broken = tmp_path / "broken"
    broken.mkdir()
    for most in (3, 12):
        begun = search(spec, broken, most=most)
        assert begun == whole[:most]
        with (broken / "optuna.jsonl").open("ab") as journal:
            journal.write(b'{"op_code": 4, "tri')
        (broken / "optuna.jsonl.lock").symlink_to("optuna.jsonl")
    assert search(spec, broken) == whole


@each_sampler
def test_jobs_at_once_are_given_points_that_lie_apart(
    make_spec: Any, tmp_path: Path, sampler: str
) -> None:
    spec = make_spec(sampler=sampler, ranges=RANGES, num_trials=14)
    positions = [
        (1 + math.log10(point.settings[RATE]) / 4, point.settings[DECAY])
        for point in search(spec, tmp_path, jobs=4)
    ]
    for number, position in enumerate(positions):
        for other in positions[max(0, number - 3) : number]:
            assert math.dist(position, other) > 0.01


@pytest.mark.parametrize("name", ["tpe", "gp", "qmc"])
def test_variants_choices_and_whole_numbers_are_searched_together(
    make_spec: Any, tmp_path: Path, name: str
) -> None:
    spec = make_spec(
        sampler=name,
        num_trials=12,
        variants={"plain": {}, "tied": {"model.tie_embeddings": True}},
        grid={"model.qk_norm": [False, True]},
        ranges={**RANGES, "batch_size": {"low": 1, "high": 8}, "z_loss": {"low": 0.1, "high": 0.1}},
    )
    points = search(spec, tmp_path)
    assert {point.variant for point in points} == {"plain", "tied"}
    assert {point.settings["model.qk_norm"] for point in points} == {False, True}
    assert all(point.settings["batch_size"] in range(1, 9) for point in points)
    assert {point.settings["z_loss"] for point in points} == {0.1}


@pytest.mark.parametrize("name", ["gp", "cmaes"])
def test_a_divergence_counts_as_the_worst_that_finished(
    make_spec: Any, tmp_path: Path, name: str
) -> None:
    proposals = make_sampler(make_spec(sampler=name, ranges=RANGES, num_trials=4), tmp_path)
    endings: list[Sequence[TrialRecord]] = [
        [TrialRecord("a", "a", "diverged", 0)],
        [TrialRecord("a", "a", "finished", 0, best_validation_loss=2.0)],
        [TrialRecord("a", "a", "finished", 0, best_validation_loss=3.0)],
        [TrialRecord("a", "a", "diverged", 0, best_validation_loss=1.0)],
    ]
    for point, records in zip(proposals.points(), endings, strict=True):
        proposals.tell(point, records)
    trials = proposals._study.get_trials()  # type: ignore[attr-defined]
    assert [trial.value for trial in trials] == [None, 2.0, 3.0, 3.0]


def test_what_failed_and_then_finished_is_learned_from_once(make_spec: Any, tmp_path: Path) -> None:
    spec = make_spec(sampler="tpe", ranges=RANGES, num_trials=3)
    proposals = make_sampler(spec, tmp_path)
    points = proposals.points()
    first = next(points)
    proposals.tell(first, [TrialRecord("a", "a", "failed", 0)])
    for _ in range(2):
        proposals = make_sampler(spec, tmp_path)
        points = proposals.points()
        again = next(points)
        assert again == first
        proposals.tell(again, finished(again))
    rest = list(points)
    assert len(rest) == 2 and first not in rest
    trials = make_sampler(spec, tmp_path)._study.get_trials()  # type: ignore[attr-defined]
    assert [trial.value for trial in trials if trial.value is not None] == [loss_of(first)]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"sampler": "cmaes", "grid": {RATE: [0.1, 0.2]}}, r"no choices \(grid: optimizer.learn"),
        ({"sampler": "cmaes", "variants": {"a": {}}, "ranges": RANGES}, r"no choices \(variants\)"),
        ({"sampler": "cmaes", "ranges": {RATE: {"low": 0.1, "high": 0.1}}}, "whose ends differ"),
        ({"sampler": "gp"}, "sampler gp has nothing to vary"),
        ({"sampler": "nsga2", "ranges": RANGES}, "tpe"),
    ],
)
def test_what_a_sampler_cannot_do_is_refused_before_the_sweep(
    make_spec: Any, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make_spec(num_trials=5, **changes)


@pytest.mark.parametrize(("name", "package"), [*PACKAGES.items(), ("gp", "optuna")])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    make_spec: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    spec = make_spec(sampler=name, ranges=RANGES, num_trials=2)
    with pytest.raises(MissingExtraError) as caught:
        run_sweep(spec, tmp_path / "small")
    assert str(caught.value) == (
        f"sampler {name} (package {package}) needs packages that are not installed: "
        f"run pip install 'groundup[sweep]' and try again"
    )
    assert not (tmp_path / "small").exists()


@each_sampler
def test_a_search_over_other_ranges_needs_another_name(
    make_spec: Any, tmp_path: Path, sampler: str
) -> None:
    search(make_spec(sampler=sampler, ranges=RANGES, num_trials=2), tmp_path)
    wider = {**RANGES, DECAY: {"low": 0.0, "high": 2.0}}
    spec = make_spec(sampler=sampler, ranges=wider, num_trials=3)
    if sampler == "tpe":  # It learns of every setting by itself.
        assert len(search(spec, tmp_path)) == 3
        return
    with pytest.raises(ConfigError, match="give the sweep another name"):
        make_sampler(spec, tmp_path)


def test_choices_of_a_search_cannot_change(make_spec: Any, tmp_path: Path) -> None:
    search_over = {"sampler": "tpe", "ranges": RANGES, "num_trials": 2}
    search(make_spec(**search_over, grid={"batch_size": [1, 2]}), tmp_path)
    with pytest.raises(ConfigError, match="batch_size from"):
        make_sampler(make_spec(**search_over, grid={"batch_size": [1, 2, 4]}), tmp_path)


def test_a_damaged_line_of_the_journal_is_named(make_spec: Any, tmp_path: Path) -> None:
    (tmp_path / "optuna.jsonl").write_text('no JSON\n{"op_code": 0}\n')
    with pytest.raises(DataError, match=r"optuna\.jsonl line 1"):
        make_sampler(make_spec(sampler="tpe", ranges=RANGES, num_trials=2), tmp_path)


def test_nothing_in_a_journal_is_code(make_spec: Any, tmp_path: Path) -> None:
    search(make_spec(sampler="cmaes", ranges=RANGES, num_trials=14), tmp_path)
    # Optuna's own CMA-ES keeps a pickle under this name, and opens it when the search goes on.
    assert "cma:optimizer" not in (tmp_path / "optuna.jsonl").read_text("utf-8")
