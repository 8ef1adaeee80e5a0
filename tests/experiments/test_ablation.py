"""Ablations: matched in parameters and tokens, each at its own best learning rate."""

import json
from pathlib import Path
from typing import Any

import pytest

from groundup.errors import ConfigError
from groundup.experiments.ablation import (
    BASE,
    ablation_spec,
    make_ablations,
    make_rows,
    match_parameters,
    run_ablation,
)
from groundup.experiments.runner import Command
from groundup.experiments.spec import base_config, build_config
from groundup.experiments.sweep import SweepOutcome, plan_trials, summarize
from groundup.experiments.trials import TrialRecord
from groundup.model.config import PRESETS, ModelConfig
from groundup.planner.parameters import count_parameters
from groundup.training.config import RunConfig

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
        optimizer={"name": "muon"},  # type: ignore[arg-type]
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


def test_each_variant_is_repeated_at_its_best_learning_rate_alone(
    make_spec: Any, figures_only: Command, tmp_path: Path
) -> None:
    spec = ablation_spec(
        base_config(make_spec()),
        variants=["qk-norm"],
        learning_rates=[0.01, 0.001, 1.0],
        seeds=[0, 1],
    )
    path = tmp_path / spec.name
    outcome = run_ablation(spec, path, command=figures_only)
    assert [row.variant for row in outcome.rows] == [BASE, "qk-norm"]
    for row in outcome.rows:
        assert row.learning_rate == 0.01 and not row.is_at_edge
        assert row.loss is not None and row.loss.num_values == 2
        assert row.difference == 0 and not row.is_clear and row.diverged_at == [1.0]
    # Three learning rates with the first seed, one with the second, for base and variant.
    assert len(list((path / "runs").iterdir())) == 8
    stored = json.loads((path / "ablation.json").read_text())
    assert stored[0]["loss"]["num_values"] == 2


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
    ]
    outcome = SweepOutcome(Path("a"), summarize(records), {r.trial: r for r in records})
    rows = make_rows(spec, outcome, {"base": 0.1, "muon": 0.2, "no-norm": None})
    assert [row.variant for row in rows] == ["base", "muon", "no-norm"]
    base, muon, no_norm = rows
    assert muon.is_clear and muon.difference == pytest.approx(-1.0) and muon.is_at_edge
    assert no_norm.loss is None and no_norm.diverged_at == [0.1, 0.2]
    assert not base.is_clear and base.difference == 0


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
