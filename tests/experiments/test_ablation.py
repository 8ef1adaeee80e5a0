"""Ablations: matched in parameters and tokens, each at its own best learning rate."""

from pathlib import Path
from typing import Any

import pytest

from groundup.errors import ConfigError
from groundup.experiments.ablation import (
    ablation_spec,
    make_ablations,
    make_rows,
    match_parameters,
)
from groundup.experiments.runner import Command
from groundup.experiments.spec import base_config, build_config
from groundup.experiments.sweep import run_ablation
from groundup.experiments.trials import TrialRecord
from groundup.model.config import PRESETS, ModelConfig
from groundup.planner.parameters import count_parameters
from groundup.runs.config import RunConfig

from .conftest import check_report, record_of

RATE = "optimizer.learning_rate"


def size_of(model: ModelConfig) -> int:
    return sum(count_parameters(model).values())


def test_an_ablation_takes_away_what_the_base_has() -> None:
    base = RunConfig(
        model=ModelConfig(
            norm="post", positions="none", feed_forward="silu", tie_embeddings=True, qk_norm=True
        ),
        optimizer={"name": "muon"},
    )
    usual = "base no-norm post-norm no-positions silu tied-embeddings qk-norm muon"
    assert list(make_ablations(RunConfig())) == usual.split()
    variants = make_ablations(base)
    names = "base no-norm pre-norm rope swiglu untied-embeddings no-qk-norm adamw"
    assert list(variants) == names.split()
    assert variants["adamw"] == {"optimizer.name": "adamw"}
    with pytest.raises(ConfigError, match="did you mean no-norm"):
        make_ablations(RunConfig(), ["no-norms"])


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_variant_has_the_parameters_of_the_base(preset: str) -> None:
    base = RunConfig(model=PRESETS[preset])
    assert match_parameters(ModelConfig(num_layers=0), 5) == ModelConfig(num_layers=0)
    for name, settings in make_ablations(base).items():
        model = build_config(base.model_dump(mode="json"), settings, where=name).model
        assert size_of(model) == pytest.approx(size_of(base.model), rel=0.005), name


# The embedding is far larger than the feed-forward layers, or smaller.
@pytest.mark.parametrize(("vocab_size", "told"), [(2_000, "+70%"), (520, "+38%"), (100, "")])
def test_where_no_inner_size_matches_it_stays_and_that_is_said(
    caplog: pytest.LogCaptureFixture, vocab_size: int, told: str
) -> None:
    sizes = {"d_model": 64, "num_heads": 4, "num_layers": 1, "d_ff": 200}
    base = RunConfig(model=ModelConfig(vocab_size=vocab_size, tie_embeddings=True, **sizes))
    variants = make_ablations(base, ["untied-embeddings"])
    assert told in caplog.text and bool(told) == bool(caplog.messages)
    assert ("model.d_ff" in variants["untied-embeddings"]) == (not told)


def test_each_variant_is_repeated_at_its_own_best_rate_and_nothing_runs_twice(
    make_spec: Any, metrics_only: Command, tmp_path: Path
) -> None:
    # Base, muon and no-norm want 0.01, 0.3 and 0.0001; a rate above 0.5 diverges.
    rates = [0.003, 0.01, 0.3, 0.6]
    options: dict[str, Any] = {"variants": ["muon", "no-norm"], "seeds": [0, 1]}
    spec = ablation_spec(base_config(make_spec()), learning_rates=rates, **options)
    started = []

    def count(config_file: Path, resume: bool) -> list[str]:
        started.append(config_file.stem)
        return metrics_only(config_file, resume)

    outcome = run_ablation(spec, tmp_path / "a", jobs=2, command=count)
    rows = {row.variant: row for row in make_rows(spec, outcome.records.values())}
    assert {name: (row.tried.best, row.tried.is_at_edge) for name, row in rows.items()} == {
        "base": (0.01, False),
        # A run that diverges is worse than any that finishes, so 0.3 is no edge.
        "muon": (0.3, False),
        "no-norm": (0.003, True),
    }
    assert all(row.diverged_at == [0.6] for row in rows.values())
    best = {"base": 0.01, "muon": 0.3, "no-norm": 0.003}
    assert sorted(name for name in started if name.endswith("seed=1")) == [
        f"{name}+learning_rate={rate}+seed=1" for name, rate in best.items()
    ]
    assert all(row.loss and row.loss.half_width for row in rows.values())
    # With more rates the same folder goes on.
    grown = ablation_spec(base_config(make_spec()), learning_rates=[0.001, *rates], **options)
    begun = len(started)
    run_ablation(grown, tmp_path / "a", jobs=2, command=count)
    names = [name for name in started[begun:] if name.startswith("no-norm")]
    assert names == [f"no-norm+learning_rate=0.001+seed={seed}" for seed in (0, 1)]
    assert len(started) == begun + 2 + 2 and len(set(started)) == len(started)
    check_report(tmp_path / "a", num_rows=3)


def test_a_variant_that_never_finishes_is_a_row_and_an_edge_is_marked(make_spec: Any) -> None:
    spec = ablation_spec(
        base_config(make_spec()), variants=["no-norm", "muon"], learning_rates=[0.1, 0.2]
    )

    def trained(variant: str, rate: float, seed: int, *result: Any) -> TrialRecord:
        names: Any = {"settings": {RATE: rate}, "variant": variant}
        return record_of(f"{variant}+{rate}", seed, *result, **names)

    records = [
        trained("base", 0.1, 0, "finished", 2.0),
        trained("base", 0.1, 1, "finished", 2.01),
        trained("muon", 0.2, 0, "finished", 1.0),
        trained("muon", 0.2, 1, "finished", 1.01),
        trained("no-norm", 0.1, 0, "diverged", None),
        trained("no-norm", 0.2, 0, "diverged", None),
        # Neither a failure nor another seed says which rate is best.
        trained("base", 0.05, 0, "failed", None),
        trained("base", 0.2, 1, "finished", 0.1),
    ]
    rows = make_rows(spec, records)
    assert [row.variant for row in rows] == ["base", "muon", "no-norm"]
    base, muon, no_norm = rows
    assert muon.is_clear and muon.difference == pytest.approx(-1.0) and muon.tried.is_at_edge
    assert no_norm.loss is None and no_norm.diverged_at == [0.1, 0.2]
    assert not no_norm.tried.is_at_edge
    assert not base.is_clear and base.difference == 0 and base.tried.rates == [0.1]
