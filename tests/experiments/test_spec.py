"""What a sweep may say, what it is told when it says something else, and the trials it names."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from groundup.config import load_settings, save_yaml
from groundup.errors import ConfigError
from groundup.experiments.points import grid_points, known_points
from groundup.experiments.spec import (
    SweepConfig,
    base_config,
    load_sweep,
    resolve,
)
from groundup.experiments.sweep import plan_trials
from groundup.experiments.trials import Point, make_trial
from groundup.runs.config import NAME_PATTERN

RATE = "optimizer.learning_rate"
SAMPLED: dict[str, Any] = {"sampler": "random", "num_trials": 5}
SWEEPS = sorted((Path(__file__).resolve().parents[2] / "configs" / "sweep").glob("*.yaml"))


def names_of(spec: SweepConfig) -> list[str]:
    return [trial.name for trial in plan_trials(spec, Path("sweeps/small"))]


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_sweep_that_comes_with_groundup_can_be_run(path: Path, tmp_path: Path) -> None:
    spec = load_sweep(path)
    assert spec.name == path.stem and spec.why
    save_yaml(tmp_path / "sweep.yaml", spec)
    assert load_settings(SweepConfig, tmp_path / "sweep.yaml") == spec
    if spec.is_search:
        drawn = spec.model_copy(update={"sampler": "random"})
        assert len(plan_trials(drawn, tmp_path)) == spec.num_trials
    else:
        assert len(plan_trials(spec, tmp_path)) == len(grid_points(spec)) * len(spec.seeds)


@pytest.mark.parametrize(
    ("changes", "noun"),
    [
        ({"grid": {"optimizer.learning_rat": [1]}}, "did you mean optimizer.learning_rate?"),
        ({"ranges": {"batch_sice": {"low": 1, "high": 2}}, **SAMPLED}, "did you mean batch_size?"),
        ({"variants": {"a": {"model.d_modle": 8}}}, "did you mean model.d_model?"),
        ({"grid": {"seed": [1]}}, "seed"),
        ({"sampler": "random"}, "num_trials"),
        ({"sampler": "tpe", "num_trials": 5}, "nothing to vary"),
        ({"sampler": "cmaes", "num_trials": 5}, "tpe"),
        ({"ranges": {RATE: {"low": 1, "high": 2}}}, "ranges"),
        ({"grid": {RATE: []}}, "no values"),
        ({"seeds": [1, 1]}, "duplicates"),
        ({"grid": {RATE: [1]}, "ranges": {RATE: {"low": 1, "high": 2}}, **SAMPLED}, RATE),
        ({"ranges": {RATE: {"low": 2, "high": 1}}, **SAMPLED}, "low 2"),
        ({"ranges": {RATE: {"low": 0, "high": 1, "scale": "log"}}, **SAMPLED}, "low 0"),
        ({"ranges": {"batch_size": {"low": 1.2, "high": 1.8}}, **SAMPLED}, "batch_size"),
        ({"tokens": 5, "grid": {"num_steps": [5]}}, "num_steps"),
        ({"tokens": 5, "variants": {"a": {"minutes": 5}}}, "minutes"),
    ],
    ids=str,
)
def test_a_sweep_that_cannot_be_is_refused_with_the_setting(
    make_spec: Any, changes: dict[str, Any], noun: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(noun)):
        make_spec(**changes)


def test_the_base_is_found_beside_the_sweep_and_kept_whole(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("num_steps: 70\nmodel: {d_model: 64}\n", "utf-8")
    sweep = {"name": "a", "base": "run.yaml", "settings": {"batch_size": 4}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep), "utf-8")
    spec = load_sweep(tmp_path / "sweep.yaml")
    base = base_config(spec)
    assert (base.num_steps, base.batch_size, base.model.d_model) == (70, 4, 64)
    (tmp_path / "run.yaml").unlink()
    assert base_config(resolve(spec)) == base


def test_a_grid_takes_every_combination_with_every_seed_and_variant(make_spec: Any) -> None:
    spec = make_spec(grid={RATE: ["1e-3", 0.01], "model.qk_norm": [False, True]}, seeds=[0, 7])
    names = names_of(spec)
    assert len(set(names)) == 8 and all(re.match(NAME_PATTERN, name) for name in names)
    assert names[:2] == [f"learning_rate=0.001+qk_norm=False+seed={seed}" for seed in (0, 7)]
    spec = make_spec(variants={"small": {}, "large": {"model.d_model": 32}}, grid={RATE: [0.1]})
    small, large = plan_trials(spec, Path("sweeps/small"))
    assert [small.name, large.name] == [f"{n}+learning_rate=0.1+seed=0" for n in ("small", "large")]
    assert large.config.model.d_model == 32
    assert large.settings == {"model.d_model": 32, RATE: 0.1}


def test_whole_numbers_stay_inside_their_range_and_close_ends_have_more_digits(
    make_spec: Any,
) -> None:
    ranges = {
        "batch_size": {"low": 1.5, "high": 3.5},
        "num_steps": {"low": 0.3, "high": 2.9, "scale": "log"},
        RATE: {"low": 100_000, "high": 100_020},
        "z_loss": {"low": 0.1, "high": 0.2},
    }
    points = known_points(make_spec(ranges=ranges, sampler="random", num_trials=30))
    tried = {name: {point.settings[name] for point in points} for name in ranges}
    assert tried["batch_size"] == {2, 3} and tried["num_steps"] == {1, 2}
    assert len(tried[RATE]) > 20 and all(100_000 <= rate <= 100_020 for rate in tried[RATE])
    assert all(len(f"{loss:.9g}") <= 7 for loss in tried["z_loss"])
    # What was sampled twice is one trial.
    twice = make_spec(grid={"batch_size": [1, 2]}, sampler="random", num_trials=20, seeds=[0, 1])
    assert len(names_of(twice)) == 4


def test_more_draws_keep_the_first_ones(make_spec: Any) -> None:
    ranges = {RATE: {"low": 1e-4, "high": 1e-2, "scale": "log"}}
    few = known_points(make_spec(ranges=ranges, sampler="random", num_trials=3))
    many = known_points(make_spec(ranges=ranges, sampler="random", num_trials=9))
    assert many[:3] == few and len({point.settings[RATE] for point in many}) == 9
    assert all(1e-4 <= point.settings[RATE] <= 1e-2 for point in many)
    other = make_spec(ranges=ranges, sampler="random", num_trials=3, sampler_seed=1)
    assert known_points(other) != few


def test_a_grid_without_end_is_refused(make_spec: Any) -> None:
    spec = make_spec(grid={RATE: [1.0] * 101, "z_loss": [0.0] * 100})
    with pytest.raises(ConfigError, match="10,100 points"):
        grid_points(spec)


@pytest.mark.parametrize("batch_size", [1, 2, 8, 40])
def test_equal_tokens_whatever_the_batch(make_spec: Any, batch_size: int) -> None:
    spec = make_spec(tokens=20 * 2 * 16 * 4)
    config = make_trial(spec, Point({"batch_size": batch_size}), 0, Path("runs")).config
    assert config.num_steps is not None
    assert config.num_steps * config.tokens_per_step == spec.tokens
    # Warm-up keeps its tenth of the run, evaluation its fifth.
    assert config.schedule.warmup_fraction == 0.1 and config.evaluation.every_fraction == 0.2
    chosen = make_trial(spec, Point({"schedule.warmup_steps": 5}), 0, Path("runs")).config
    assert chosen.schedule.warmup_steps == 5
    # Checkpoints are thinned unless all are kept.
    all_kept = make_spec(keep_checkpoints="all")
    assert config.checkpoints.keep_last == 1 and not config.checkpoints.keep_best
    assert make_trial(all_kept, Point({}), 0, Path("runs")).config.checkpoints.keep_last == 3


def test_long_and_odd_names_stay_apart(make_spec: Any) -> None:
    long = [f"{'x' * 300}{number}" for number in range(2)]
    spec = make_spec(grid={"samples.prompts": [[text] for text in (*long, "a/b", "a b")]})
    odd = make_spec(variants={"ü x": {}, "é x": {}, "-x": {}, "v-x": {}, "_": {}})
    names = [*names_of(spec), *names_of(odd)]
    assert len(set(names)) == 9 and all(re.match(NAME_PATTERN, name) for name in names)
    assert max(map(len, names)) < 200
    # A plus stands between the parts of a name alone.
    assert names_of(make_spec(grid={RATE: [1e12]})) == ["learning_rate=1e12+seed=0"]
