"""Searches: each learns more than chance, and none loses its way at a kill."""

import json
import math
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from groundup.errors import DataError, MissingExtraError
from groundup.experiments import sweep
from groundup.experiments.points import known_points, propose
from groundup.experiments.runner import Command
from groundup.experiments.spec import SweepConfig
from groundup.experiments.sweep import look_ahead, run_sweep
from groundup.experiments.sweep_folder import SweepFolder
from groundup.experiments.trials import Point

from .conftest import record_of

pytest.importorskip("optuna")

RATE, DECAY = "optimizer.learning_rate", "optimizer.weight_decay"
RANGES = {RATE: {"low": 1e-4, "high": 1.0, "scale": "log"}, DECAY: {"low": 0.0, "high": 1.0}}
SEARCH: dict[str, Any] = {
    "sampler": "tpe",
    "num_trials": 3,
    "ranges": {RATE: {"low": 1e-4, "high": 0.4, "scale": "log"}},
}


def loss_of(point: Point) -> float:
    """Least at a rate of 0.05 and a decay of 0.3."""
    away = math.log10(point.settings[RATE] / 0.05), 4 * (point.settings[DECAY] - 0.3)
    return away[0] ** 2 + away[1] ** 2


def history_of(points: list[Point], num_ended: int) -> list[Any]:
    ended = [(point, "finished", loss_of(point)) for point in points[:num_ended]]
    return [*ended, *((point, None, None) for point in points[num_ended:])]


def search(spec: SweepConfig, jobs: int = 1) -> list[Point]:
    """Every point of a search with so many under way at once."""
    points: list[Point] = []
    assert spec.num_trials is not None
    for number in range(spec.num_trials):
        num_ended = max(0, number + 1 - jobs)
        points.append(propose(spec, history_of(points, num_ended)))
    return points


@pytest.mark.slow
def test_a_search_ends_where_chance_would_not(make_spec: Any) -> None:
    common = {"ranges": RANGES, "sampler_seed": 1}
    sampled = known_points(make_spec(sampler="random", num_trials=100, **common))
    points = search(make_spec(sampler="tpe", num_trials=26, **common))
    assert mean(map(loss_of, points[-6:])) < mean(map(loss_of, sampled)) / 2


def test_jobs_at_once_are_given_points_that_lie_apart(make_spec: Any) -> None:
    points = search(make_spec(sampler="tpe", ranges=RANGES, num_trials=13), jobs=4)
    positions = [(1 + math.log10(p.settings[RATE]) / 4, p.settings[DECAY]) for p in points]
    for number, position in enumerate(positions):
        for other in positions[max(0, number - 3) : number]:
            assert math.dist(position, other) > 0.01


def test_variants_choices_and_whole_numbers_are_searched_together(make_spec: Any) -> None:
    spec = make_spec(
        sampler="tpe",
        num_trials=12,
        variants={"plain": {}, "tied": {"model.tie_embeddings": True}},
        grid={"model.qk_norm": [False, True]},
        ranges={**RANGES, "batch_size": {"low": 1, "high": 8}, "z_loss": {"low": 0.1, "high": 0.1}},
    )
    points = search(spec)
    assert {point.variant for point in points} == {"plain", "tied"}
    assert {point.settings["model.qk_norm"] for point in points} == {False, True}
    assert all(point.settings["batch_size"] in range(1, 9) for point in points)
    assert {point.settings["z_loss"] for point in points} == {0.1}


def test_what_was_lost_counts_as_the_worst_that_finished(make_spec: Any) -> None:
    spec = make_spec(sampler="tpe", ranges=RANGES, num_trials=14)
    points = search(spec)
    losses = [loss_of(point) for point in points]
    worst = max(loss for loss in losses if loss <= 3)
    pairs = list(zip(points, losses, strict=True))
    lost = [
        (one, "finished", loss) if loss <= 3 else (one, "diverged", None) for one, loss in pairs
    ]
    same = [(one, "finished", min(loss, worst)) for one, loss in pairs]
    assert propose(spec, lost) == propose(spec, same)  # type: ignore[arg-type]
    assert any(loss is None for *_, loss in lost)


def test_points_outside_the_ranges_of_now_are_not_learned_from(make_spec: Any) -> None:
    narrow = make_spec(sampler="tpe", num_trials=9, ranges={RATE: {"low": 0.1, "high": 0.2}})
    points = [Point({RATE: 5.0}), Point({RATE: 0.15, DECAY: 0.1}), Point({DECAY: 0.3})]
    found = propose(narrow, [(point, "finished", 1.0) for point in points])
    assert 0.1 <= found.settings[RATE] <= 0.2
    assert propose(narrow, [(point, None, None) for point in points]) == found


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    make_spec: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    spec = make_spec(sampler="tpe", ranges=RANGES, num_trials=2)
    with pytest.raises(MissingExtraError, match=r"sampler tpe.*groundup\[sweep\]"):
        run_sweep(spec, tmp_path / "small")
    assert not (tmp_path / "small").exists()


def test_a_point_is_learned_from_when_all_its_seeds_have_ended(
    make_spec: Any, tmp_path: Path
) -> None:
    spec, folder = make_spec(**SEARCH, seeds=[0, 1]), SweepFolder(tmp_path)
    ended = {"whole": ("finished", "finished"), "begun": ("finished",)}
    ended |= {"lost": ("finished", "diverged"), "failed": ("finished", "failed")}
    for name, states in ended.items():
        for seed, state in enumerate(states):
            folder.add_record(record_of(name, seed, state, 2.0 + seed))
    points = [Point({RATE: 0.1}) for _ in ended]
    history = sweep._history(spec, folder, points, list(ended))
    expected = [("finished", 2.5), (None, None), ("diverged", None), (None, None)]
    assert [end for _, *end in history] == list(map(list, expected))


def test_a_search_that_was_killed_goes_on_as_if_nothing_had_happened(
    make_spec: Any, metrics_only: Command, tmp_path: Path
) -> None:
    spec = make_spec(**{**SEARCH, "num_trials": 4, "sampler": "tpe"})
    whole = run_sweep(spec, tmp_path / "whole", command=metrics_only)
    begun = spec.model_copy(update={"num_trials": 3})
    run_sweep(begun, tmp_path / "broken", command=metrics_only)
    folder = SweepFolder(tmp_path / "broken")
    records = folder.records_file.read_text().splitlines(keepends=True)
    folder.records_file.write_text("".join(records[:-1]) + '{"trial": "lea')
    with folder.proposals_file.open("a") as file:
        file.write('{"settings": {"opti')
    broken = run_sweep(spec, tmp_path / "broken", command=metrics_only)
    assert list(broken.records) == list(whole.records)


def test_an_impossible_proposal_is_left_out_and_the_search_goes_on(
    make_spec: Any, metrics_only: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = make_spec(sampler="tpe", num_trials=2, grid={"model.num_heads": [3]})
    outcome = run_sweep(spec, tmp_path / "small", command=metrics_only)
    assert outcome.records == {} and "skipping a proposal" in caplog.text
    # So is one of a variant that is gone.
    gone = json.dumps({"settings": {}, "variant": "gone"})
    (tmp_path / "small" / "proposals.jsonl").write_text(f"{gone}\n{gone}\n")
    run_sweep(spec, tmp_path / "small", command=metrics_only)
    assert "variant gone" in caplog.text


def test_a_damaged_line_of_proposals_is_named(make_spec: Any, tmp_path: Path) -> None:
    for text, complaint in (("no JSON\n{}\n", "line 1"), ('{"op_code": 0}\n', "without settings")):
        (tmp_path / "proposals.jsonl").write_text(text)
        with pytest.raises(DataError, match=rf"proposals\.jsonl .*{complaint}"):
            look_ahead(make_spec(**SEARCH), tmp_path)
