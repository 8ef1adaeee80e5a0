"""Sweep files, the trials they define, and searches, which survive a kill."""

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from groundup.config import load_settings, save_yaml
from groundup.errors import ConfigError, DataError, MissingExtraError
from groundup.experiments import sweep
from groundup.experiments.points import grid_points, propose
from groundup.experiments.runner import Command
from groundup.experiments.spec import (
    SweepConfig,
    base_config,
    load_sweep,
    resolve,
)
from groundup.experiments.sweep import look_ahead, plan_trials, run_sweep
from groundup.experiments.sweep_folder import SweepFolder
from groundup.experiments.trials import Point, make_trial
from groundup.runs.config import NAME_PATTERN

from .conftest import record_of

RATE = "optimizer.learning_rate"
SAMPLED: dict[str, Any] = {"num_trials": 5}
SWEEPS = sorted((Path(__file__).resolve().parents[2] / "configs" / "sweep").glob("*.yaml"))


def names_of(spec: SweepConfig) -> list[str]:
    return [trial.name for trial in plan_trials(spec, Path("sweeps/small"))]


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_bundled_sweep_can_be_run(path: Path, tmp_path: Path) -> None:
    spec = load_sweep(path)
    assert spec.name == path.stem and spec.why
    save_yaml(tmp_path / "sweep.yaml", spec)
    assert load_settings(SweepConfig, tmp_path / "sweep.yaml") == spec
    if spec.is_search:
        assert plan_trials(spec, tmp_path, [propose(spec, [])])
    else:
        assert len(plan_trials(spec, tmp_path)) == len(grid_points(spec)) * len(spec.seeds)


@pytest.mark.parametrize(
    ("changes", "noun"),
    [
        ({"grid": {"optimizer.learning_rat": [1]}}, "did you mean optimizer.learning_rate?"),
        ({"ranges": {"batch_sice": {"low": 1, "high": 2}}, **SAMPLED}, "did you mean batch_size?"),
        ({"variants": {"a": {"model.d_modle": 8}}}, "did you mean model.d_model?"),
        ({"grid": {"seed": [1]}}, "seed"),
        (SAMPLED, "something to vary"),
        ({"sampler": "random"}, "sampler"),
        ({"ranges": {RATE: {"low": 1, "high": 2}}}, "ranges"),
        ({"grid": {RATE: []}}, "no values"),
        ({"seeds": [1, 1]}, "duplicates"),
        ({"grid": {RATE: [1]}, "ranges": {RATE: {"low": 1, "high": 2}}, **SAMPLED}, RATE),
        ({"ranges": {RATE: {"low": 2, "high": 1}}, **SAMPLED}, "low 2"),
        ({"ranges": {RATE: {"low": 0, "high": 1, "scale": "log"}}, **SAMPLED}, "low 0"),
        ({"tokens": 5, "grid": {"num_steps": [5]}}, "num_steps"),
        ({"tokens": 5, "variants": {"a": {"minutes": 5}}}, "minutes"),
    ],
    ids=str,
)
def test_invalid_sweeps_are_rejected_by_setting(
    make_spec: Any, changes: dict[str, Any], noun: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(noun)):
        make_spec(**changes)


def test_the_base_is_found_next_to_the_sweep_and_copied(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("num_steps: 70\nmodel: {d_model: 64}\n", "utf-8")
    sweep = {"name": "a", "base": "run.yaml", "settings": {"batch_size": 4}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep), "utf-8")
    spec = load_sweep(tmp_path / "sweep.yaml")
    base = base_config(spec)
    assert (base.num_steps, base.batch_size, base.model.d_model) == (70, 4, 64)
    (tmp_path / "run.yaml").unlink()
    assert base_config(resolve(spec)) == base


def test_a_grid_has_every_combination_of_values_seeds_and_variants(make_spec: Any) -> None:
    spec = make_spec(grid={RATE: ["1e-3", 0.01], "model.qk_norm": [False, True]}, seeds=[0, 7])
    names = names_of(spec)
    assert len(set(names)) == 8 and all(re.match(NAME_PATTERN, name) for name in names)
    assert names[:2] == [f"learning_rate=0.001+qk_norm=False+seed={seed}" for seed in (0, 7)]
    spec = make_spec(variants={"small": {}, "large": {"model.d_model": 32}}, grid={RATE: [0.1]})
    small, large = plan_trials(spec, Path("sweeps/small"))
    assert [small.name, large.name] == [f"{n}+learning_rate=0.1+seed=0" for n in ("small", "large")]
    assert large.config.model.d_model == 32
    assert large.settings == {"model.d_model": 32, RATE: 0.1}


def begun(spec: SweepConfig) -> list[Point]:
    """The points of a search before any trial has ended."""
    points: list[Point] = []
    for _ in range(spec.num_trials or 0):
        points.append(propose(spec, [(point, None, None) for point in points]))
    return points


def test_integers_stay_in_their_range_and_narrow_ranges_have_more_digits(
    make_spec: Any,
) -> None:
    ranges = {
        "batch_size": {"low": 2, "high": 3},
        "num_steps": {"low": 1, "high": 2, "scale": "log"},
        RATE: {"low": 100_000.0, "high": 100_020.0},
        "z_loss": {"low": 0.1, "high": 0.2},
    }
    points = begun(make_spec(ranges=ranges, num_trials=30))
    tried = {name: {point.settings[name] for point in points} for name in ranges}
    assert tried["batch_size"] == {2, 3} and tried["num_steps"] == {1, 2}
    assert len(tried[RATE]) > 20 and all(100_000 <= rate <= 100_020 for rate in tried[RATE])
    assert all(len(f"{loss:.9g}") <= 7 for loss in tried["z_loss"])
    # A point proposed twice is one trial.
    twice = make_spec(grid={"batch_size": [1, 2]}, num_trials=20, seeds=[0, 1])
    assert len(plan_trials(twice, Path("sweeps/small"), begun(twice))) == 4


def test_a_huge_grid_is_rejected(make_spec: Any) -> None:
    spec = make_spec(grid={RATE: [1.0] * 101, "z_loss": [0.0] * 100})
    with pytest.raises(ConfigError, match="10,100 points"):
        grid_points(spec)


@pytest.mark.parametrize("batch_size", [1, 2, 8, 40])
def test_trials_have_equal_tokens_for_any_batch_size(make_spec: Any, batch_size: int) -> None:
    spec = make_spec(tokens=20 * 2 * 16 * 4)
    config = make_trial(spec, Point({"batch_size": batch_size}), 0, Path("runs")).config
    assert config.num_steps is not None
    assert config.num_steps * config.tokens_per_step == spec.tokens
    # Warm-up stays a tenth of the run, evaluation a fifth.
    assert config.schedule.warmup_steps == 0.1 and config.evaluation.every_steps == 0.2
    chosen = make_trial(spec, Point({"schedule.warmup_steps": 5}), 0, Path("runs")).config
    assert chosen.schedule.warmup_steps == 5
    # Checkpoints are thinned unless all are kept.
    all_kept = make_spec(keep_checkpoints="all")
    assert config.checkpoints.keep_last == 1 and not config.checkpoints.keep_best
    assert make_trial(all_kept, Point({}), 0, Path("runs")).config.checkpoints.keep_last == 3


def test_long_and_unusual_names_stay_distinct(make_spec: Any) -> None:
    long = [f"{'x' * 300}{number}" for number in range(2)]
    spec = make_spec(grid={"samples.prompts": [[text] for text in (*long, "a/b", "a b")]})
    odd = make_spec(variants={"ü x": {}, "é x": {}, "-x": {}, "v-x": {}, "_": {}})
    names = [*names_of(spec), *names_of(odd)]
    assert len(set(names)) == 9 and all(re.match(NAME_PATTERN, name) for name in names)
    assert max(map(len, names)) < 200
    # Names contain a plus only between their parts.
    assert names_of(make_spec(grid={RATE: [1e12]})) == ["learning_rate=1e12+seed=0"]


pytest.importorskip("optuna")

DECAY = "optimizer.weight_decay"
RANGES = {RATE: {"low": 1e-4, "high": 1.0, "scale": "log"}, DECAY: {"low": 0.0, "high": 1.0}}
SEARCH: dict[str, Any] = {
    "num_trials": 3,
    "ranges": {RATE: {"low": 1e-4, "high": 0.4, "scale": "log"}},
}


def loss_of(point: Point) -> float:
    """Lowest at a rate of 0.05 and a decay of 0.3."""
    away = math.log10(point.settings[RATE] / 0.05), 4 * (point.settings[DECAY] - 0.3)
    return away[0] ** 2 + away[1] ** 2


def search(spec: SweepConfig) -> list[Point]:
    """All points of a search with one trial at a time."""
    points: list[Point] = []
    for _ in range(spec.num_trials or 0):
        points.append(propose(spec, [(point, "finished", loss_of(point)) for point in points]))
    return points


def test_proposals_follow_low_losses_and_keep_apart_from_running_points(make_spec: Any) -> None:
    spec = make_spec(ranges={DECAY: RANGES[DECAY]}, num_trials=22)
    ended: list[Any] = [
        (Point({DECAY: number / 20}), "finished", abs(number / 20 - 0.3)) for number in range(21)
    ]
    found = propose(spec, ended).settings[DECAY]
    assert abs(found - 0.3) < 0.2
    running = [(Point({DECAY: 0.3 + number / 100}), None, None) for number in range(-10, 11)]
    assert abs(propose(spec, [*ended, *running]).settings[DECAY] - 0.3) > 0.1


def test_variants_choices_and_whole_numbers_are_searched_together(make_spec: Any) -> None:
    spec = make_spec(
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


def test_failed_trials_count_as_the_worst_finished_one(make_spec: Any) -> None:
    spec = make_spec(ranges=RANGES, num_trials=14)
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


def test_points_outside_the_current_ranges_are_ignored(make_spec: Any) -> None:
    narrow = make_spec(num_trials=9, ranges={RATE: {"low": 0.1, "high": 0.2}})
    points = [Point({RATE: 5.0}), Point({RATE: 0.15, DECAY: 0.1}), Point({DECAY: 0.3})]
    found = propose(narrow, [(point, "finished", 1.0) for point in points])
    assert 0.1 <= found.settings[RATE] <= 0.2
    assert propose(narrow, [(point, None, None) for point in points]) == found


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    make_spec: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    spec = make_spec(ranges=RANGES, num_trials=2)
    with pytest.raises(MissingExtraError, match=r"a search.*groundup\[sweep\]"):
        run_sweep(spec, tmp_path / "small")
    assert not (tmp_path / "small").exists()


def test_a_point_counts_once_all_its_seeds_have_ended(make_spec: Any, tmp_path: Path) -> None:
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


def test_a_killed_search_continues_exactly(
    make_spec: Any, metrics_only: Command, tmp_path: Path
) -> None:
    spec = make_spec(**{**SEARCH, "num_trials": 4})
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


def test_an_invalid_proposal_is_skipped_and_the_search_continues(
    make_spec: Any, metrics_only: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = make_spec(num_trials=2, grid={"model.num_heads": [3]})
    outcome = run_sweep(spec, tmp_path / "small", command=metrics_only)
    assert outcome.records == {} and "skipping a proposal" in caplog.text
    # So is a proposal for a removed variant.
    gone = json.dumps({"settings": {}, "variant": "gone"})
    (tmp_path / "small" / "proposals.jsonl").write_text(f"{gone}\n{gone}\n")
    run_sweep(spec, tmp_path / "small", command=metrics_only)
    assert "variant gone" in caplog.text


def test_a_damaged_line_of_proposals_is_named(make_spec: Any, tmp_path: Path) -> None:
    for text, complaint in (("no JSON\n{}\n", "line 1"), ('{"op_code": 0}\n', "without settings")):
        (tmp_path / "proposals.jsonl").write_text(text)
        with pytest.raises(DataError, match=rf"proposals\.jsonl .*{complaint}"):
            look_ahead(make_spec(**SEARCH), tmp_path)
