"""Ablations: matched in parameters and tokens, each at its own best learning rate."""

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.errors import ConfigError
from groundup.experiments import sweep as sweeps
from groundup.experiments.ablation import (
    BASE,
    TriedRates,
    ablation_spec,
    make_ablations,
    make_rows,
    match_parameters,
    next_rate,
)
from groundup.experiments.runner import Command
from groundup.experiments.spec import SweepConfig, base_config, build_config
from groundup.experiments.sweep import SweepOutcome, plan_trials, run_ablation, run_sweep
from groundup.experiments.trials import TrialRecord
from groundup.model.config import PRESETS, ModelConfig
from groundup.planner.parameters import count_parameters
from groundup.runs.config import RunConfig

RATE = "optimizer.learning_rate"


def size_of(model: ModelConfig) -> int:
    return sum(count_parameters(model).values())


def test_all_the_ablations_of_the_usual_recipe() -> None:
    assert list(make_ablations(RunConfig())) == [
        "base",
        "no-norm",
        "post-norm",
        "no-positions",
        "silu",
        "tied-embeddings",
        "qk-norm",
        "muon",
    ]


def test_an_ablation_takes_away_what_the_base_has() -> None:
    base = RunConfig(
        model=ModelConfig(
            norm="post", positions="none", feed_forward="silu", tie_embeddings=True, qk_norm=True
        ),
        optimizer={"name": "muon"},
    )
    variants = make_ablations(base)
    names = "base no-norm pre-norm rope swiglu untied-embeddings no-qk-norm adamw"
    assert list(variants) == names.split()
    assert variants["adamw"] == {"optimizer.name": "adamw"}


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_variant_has_the_parameters_of_the_base(preset: str) -> None:
    base = RunConfig(model=PRESETS[preset])
    for name, settings in make_ablations(base).items():
        model = build_config(base.model_dump(mode="json"), settings, where=name).model
        assert size_of(model) == pytest.approx(size_of(base.model), rel=0.005), name


@pytest.mark.parametrize(
    ("vocab_size", "told"),
    [
        # The embedding is far larger than the feed-forward layers, and nearly as large.
        (2_000, "untied-embeddings has +70% parameters: no d_ff makes up for that"),
        (520, "untied-embeddings has +38% parameters: no d_ff makes up for that"),
        (100, ""),
    ],
)
def test_where_no_inner_size_matches_it_stays_and_that_is_said(
    caplog: pytest.LogCaptureFixture, vocab_size: int, told: str
) -> None:
    sizes = {"d_model": 64, "num_heads": 4, "num_layers": 1, "d_ff": 200}
    base = RunConfig(model=ModelConfig(vocab_size=vocab_size, tie_embeddings=True, **sizes))
    variants = make_ablations(base, ["untied-embeddings"])
    assert caplog.messages == ([told] if told else [])
    assert ("model.d_ff" in variants["untied-embeddings"]) == (not told)


def test_matching_finds_the_nearest_inner_size() -> None:
    model = ModelConfig(d_model=64, num_heads=4, num_layers=2, d_ff=200)
    assert match_parameters(model, size_of(model)).d_ff == 200
    assert match_parameters(model, 0).d_ff == 1
    assert match_parameters(ModelConfig(num_layers=0), 5) == ModelConfig(num_layers=0)


def test_an_unknown_ablation_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no ablation no-norms: did you mean no-norm"):
        make_ablations(RunConfig(), ["no-norms"])


def test_all_trials_see_the_same_tokens(make_spec: Any) -> None:
    spec = ablation_spec(base_config(make_spec()), tokens=32_000)
    trials = plan_trials(spec, Path("sweeps/ablations"))
    tokens = {t.config.num_steps * t.config.tokens_per_step for t in trials}
    assert tokens == {32_000} and len(trials) == 8 * 3


class Launches:
    """The trials that were started, and a kill before the one of that number starts."""

    def __init__(self, command: Command, kill_at: int | None = None) -> None:
        self._command = command
        self._kill_at = kill_at
        self.names: list[str] = []

    def __call__(self, config_file: Path, resume: bool) -> list[str]:
        if len(self.names) == self._kill_at:
            raise RuntimeError("killed")
        self.names.append(config_file.stem)
        return self._command(config_file, resume)


@pytest.fixture
def wide_spec(make_spec: Any) -> SweepConfig:
    """Base, muon and no-norm, which want 0.01, 0.3 and 0.0001, around the first of these."""
    return ablation_spec(
        base_config(make_spec()),
        variants=["muon", "no-norm"],
        learning_rates=[0.003, 0.01, 0.03],
        seeds=[0, 1],
    )


def without_no_norm(spec: SweepConfig, **changes: Any) -> SweepConfig:
    variants = {name: spec.variants[name] for name in (BASE, "muon")}
    return spec.model_copy(update={"variants": variants, **changes})


def told(
    spec: SweepConfig, outcome: SweepOutcome
) -> dict[str, tuple[float | None, bool, list[float]]]:
    rows = make_rows(spec, outcome.records.values())
    return {r.variant: (r.learning_rate, r.is_at_edge, r.rates_tried) for r in rows}


def test_a_best_rate_at_an_end_of_the_list_is_searched_for_beyond(
    wide_spec: SweepConfig, metrics_only: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = []

    def count_round(*words: Any, **options: Any) -> SweepOutcome:
        rounds.append(
            sorted(f"{point.variant} {point.settings[RATE]:g}" for point in options["points"])
        )
        return run_sweep(*words, **options)

    monkeypatch.setattr(sweeps, "run_sweep", count_round)
    outcome = run_ablation(wide_spec, tmp_path / "a", jobs=2, command=metrics_only)
    assert told(wide_spec, outcome) == {
        "base": (0.01, False, [0.003, 0.01, 0.03]),
        # A run that diverges is worse than any that finishes, and so the search ends there.
        "muon": (0.27, False, [0.003, 0.01, 0.03, 0.09, 0.27, 0.81]),
        # Three more are the limit; that the best may lie outside is still said.
        "no-norm": (8.1e-5, True, [8.1e-5, 0.00027, 0.0009, 0.003, 0.01, 0.03]),
    }
    assert rounds[1:] == [
        ["muon 0.09", "no-norm 0.0009"],
        ["muon 0.27", "no-norm 0.00027"],
        ["muon 0.81", "no-norm 8.1e-05"],
        ["base 0.01", "muon 0.27", "no-norm 8.1e-05"],
    ]
    rows = {row.variant: row for row in make_rows(wide_spec, outcome.records.values())}
    assert rows["muon"].diverged_at == [0.81]
    assert all(row.loss is not None and row.loss.num_values == 2 for row in rows.values())


def test_a_search_that_was_killed_goes_on_and_runs_nothing_twice(
    wide_spec: SweepConfig, metrics_only: Command, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    spec = without_no_norm(wide_spec)
    # Six trials of the list and the first beyond it.
    first = Launches(metrics_only, kill_at=7)
    with pytest.raises(RuntimeError, match="killed"):
        run_ablation(spec, path, command=first)
    second = Launches(metrics_only)
    outcome = run_ablation(spec, path, jobs=2, command=second)
    assert told(spec, outcome)["muon"] == (0.27, False, [0.003, 0.01, 0.03, 0.09, 0.27, 0.81])
    assert len(first.names) == 7 and len(second.names) == 2 + 2
    assert not {*first.names} & {*second.names}
    third = Launches(metrics_only)
    assert run_ablation(spec, path, command=third) == outcome and not third.names


def test_a_rate_beyond_the_list_that_failed_is_tried_again_by_the_next_command_alone(
    wide_spec: SweepConfig, metrics_only: Command, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    spec = without_no_norm(wide_spec, seeds=[0])

    def fail(config_file: Path, resume: bool) -> list[str]:
        if "learning_rate=0.09+" in config_file.name:
            return [sys.executable, "-c", "raise SystemExit(3)"]
        return metrics_only(config_file, resume)

    first = Launches(fail, kill_at=20)
    outcome = run_ablation(spec, path, jobs=2, command=first)
    # A failure says nothing of the rate, so the best one is still at the end of those tried.
    assert told(spec, outcome)["muon"] == (0.03, True, [0.003, 0.01, 0.03])
    assert len(first.names) == 6 + 1
    second = Launches(metrics_only)
    outcome = run_ablation(spec, path, extra_rates=1, jobs=2, command=second)
    assert second.names == ["muon+learning_rate=0.09+seed=0"]
    assert told(spec, outcome)["muon"] == (0.09, True, [0.003, 0.01, 0.03, 0.09])


def test_a_folder_that_kept_to_its_list_is_gone_on_with(
    wide_spec: SweepConfig, metrics_only: Command, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    kept = run_ablation(wide_spec, path, extra_rates=0, jobs=2, command=metrics_only)
    assert {name: row[:2] for name, row in told(wide_spec, kept).items()} == {
        "base": (0.01, False),
        "muon": (0.03, True),
        "no-norm": (0.003, True),
    }
    again = Launches(metrics_only)
    outcome = run_ablation(wide_spec, path, extra_rates=1, jobs=2, command=again)
    rates = {"muon": "0.09", "no-norm": "0.0009"}
    names = {f"{n}+learning_rate={r}+seed={s}" for n, r in rates.items() for s in (0, 1)}
    assert {*again.names} == names and len(again.names) == 4
    assert told(wide_spec, outcome)["muon"][:2] == (0.09, True)


LIST = [0.001, 0.003, 0.006]
DOWN = {0.001: 1.0, 0.003: 2.0, 0.006: 3.0}
UP = {0.001: 4.0, 0.003: 3.0, 0.006: 2.0, 0.012: 1.0, 0.024: 0.5, 0.048: 0.1}


@pytest.mark.parametrize(
    ("losses", "lost", "options", "expected"),
    [
        # A best rate inside needs no other; at an end the next is as far as the step there.
        ({0.001: 3.0, 0.003: 2.0, 0.006: 3.0}, [], {}, None),
        (DOWN, [], {}, 0.00033),
        ({0.001: 3.0, 0.003: 2.0, 0.006: 1.0}, [], {}, 0.012),
        ({0.00033: 0.5, **DOWN}, [], {}, 0.00011),
        # A side has a limit, and none keeps to the list.
        (UP, [], {}, None),
        (UP, [], {"max_extra": 4}, 0.096),
        (DOWN, [], {"max_extra": 0}, None),
        # One that diverged ends the way up; where all did, the way is down.
        ({0.001: 2.0, 0.003: 1.0}, [0.006], {}, None),
        ({0.001: 2.0, 0.003: 1.5, 0.006: 1.0}, [0.012], {}, None),
        ({}, LIST, {}, 0.00033),
        ({}, [0.00011, 0.00033, 3.7e-5, *LIST], {}, None),
        # One that failed is not asked for again nor passed, in the list itself too.
        (DOWN, [], {"asked": {*LIST, 0.00033}}, None),
        ({0.003: 1.0}, [], {}, None),
        ({0.006: 1.0}, [], {}, 0.012),
        ({}, [], {}, None),
        # One rate is a choice.
        ({0.001: 1.0}, [], {"listed": [0.001, 0.001], "asked": {0.001}}, None),
    ],
)
def test_the_next_learning_rate_lies_beyond_a_best_one_at_an_end(
    losses: dict[float, float], lost: list[float], options: dict[str, Any], expected: float | None
) -> None:
    tried = TriedRates(losses, set(lost))
    asked = options.get("asked", {*LIST, *tried.rates})
    listed, max_extra = options.get("listed", LIST), options.get("max_extra", 3)
    assert next_rate(tried, listed, asked, max_extra) == expected


@given(
    st.floats(1e-6, 10),
    st.floats(1.0000001, 100),
    st.integers(0, 5),
    st.booleans(),
)
def test_every_step_leads_outward_and_the_search_ends(
    low: float, ratio: float, max_extra: int, is_down: bool
) -> None:
    listed = [low, low * ratio]
    losses = {rate: rate if is_down else -rate for rate in listed}
    tried = TriedRates(losses)
    for _ in range(max_extra):
        rate = next_rate(tried, listed, set(tried.rates), max_extra)
        assert rate is not None
        assert rate < tried.rates[0] if is_down else rate > tried.rates[-1]
        losses[rate] = rate if is_down else -rate
    assert next_rate(tried, listed, set(tried.rates), max_extra) is None
    assert tried.is_at_edge


@pytest.mark.parametrize(
    ("losses", "lost", "is_at_edge"),
    [
        ({0.1: 1.0, 0.2: 2.0}, set(), True),
        ({0.1: 2.0, 0.2: 1.0}, set(), True),
        ({0.1: 2.0, 0.2: 1.0}, {0.4}, False),
        ({0.1: 1.0}, set(), True),
        ({}, {0.1}, False),
    ],
)
def test_an_edge_is_that_of_the_rates_that_were_tried(
    losses: dict[float, float], lost: set[float], is_at_edge: bool
) -> None:
    assert TriedRates(losses, lost).is_at_edge == is_at_edge


def test_trials_of_a_sweep_in_the_same_folder_are_no_part_of_the_ablation(
    make_spec: Any, metrics_only: Command, tmp_path: Path
) -> None:
    sweep = make_spec(variants={BASE: {}}, grid={"z_loss": [0.0]})
    run_sweep(sweep, tmp_path, command=metrics_only)
    both = make_spec(variants={BASE: {}}, grid={"z_loss": [0.1], RATE: [0.01]})
    run_sweep(both, tmp_path, command=metrics_only)
    spec = ablation_spec(base_config(sweep), variants=["muon"], learning_rates=[0.02])
    outcome = run_ablation(spec, tmp_path, command=metrics_only)
    assert told(spec, outcome)[BASE] == (0.02, True, [0.02])


def test_a_variant_that_never_finishes_is_a_row_and_an_edge_is_marked(make_spec: Any) -> None:
    spec = ablation_spec(
        base_config(make_spec()), variants=["no-norm", "muon"], learning_rates=[0.1, 0.2]
    )
    records = [
        _record("base", 0.1, 0, "finished", 2.0),
        _record("base", 0.1, 1, "finished", 2.01),
        _record("muon", 0.2, 0, "finished", 1.0),
        _record("muon", 0.2, 1, "finished", 1.01),
        _record("no-norm", 0.1, 0, "diverged", None),
        _record("no-norm", 0.2, 0, "diverged", None),
        # Neither a failure nor another seed says which rate is best.
        _record("base", 0.05, 0, "failed", None),
        _record("base", 0.2, 1, "finished", 0.1),
    ]
    rows = make_rows(spec, records)
    assert [row.variant for row in rows] == ["base", "muon", "no-norm"]
    base, muon, no_norm = rows
    assert muon.is_clear and muon.difference == pytest.approx(-1.0) and muon.is_at_edge
    assert no_norm.loss is None and no_norm.diverged_at == [0.1, 0.2]
    assert not base.is_clear and base.difference == 0 and base.rates_tried == [0.1]


def _record(variant: str, rate: float, seed: int, status: str, loss: float | None) -> TrialRecord:
    return TrialRecord(
        trial=f"{variant}+{rate}+{seed}",
        point=f"{variant}+{rate}",
        status=status,  # type: ignore[arg-type]
        seed=seed,
        settings={RATE: rate},
        variant=variant,
        best_validation_loss=loss,
    )
