"""Ladders: the budget is spent whatever the size, fits find what the figures were made from."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from groundup.config import load_settings
from groundup.errors import ConfigError, DataError
from groundup.experiments.isoflop import (
    PowerLaw,
    SizeResult,
    analyse,
    fit_budgets,
    fit_laws,
    fit_parabola,
    isoflop_spec,
    make_sizes,
    shape,
)
from groundup.experiments.runner import Command
from groundup.experiments.spec import SweepConfig, base_config
from groundup.experiments.sweep import plan_trials, run_isoflop
from groundup.model.config import ModelConfig
from groundup.planner.parameters import training_flops_per_token
from groundup.runs.config import RunConfig

from .conftest import check_report, record_of


def test_a_shape_keeps_its_heads_and_its_ratios() -> None:
    base = ModelConfig(d_model=512, num_layers=4, num_heads=16, d_ff=1344)
    assert shape(base, 1024) == {
        "model.d_model": 1024,
        "model.num_heads": 32,
        "model.num_layers": 8,
        "model.d_ff": 2688,
    }
    assert shape(base, 64)["model.num_layers"] == 1
    grouped = base.model_copy(update={"num_kv_heads": 4})
    shared = {width: shape(grouped, width)["model.num_kv_heads"] for width in (32, 224, 256, 1024)}
    assert shared == {32: 1, 224: 1, 256: 2, 1024: 8}
    with pytest.raises(ConfigError, match="heads of 32"):
        shape(base, 100)


def test_every_width_spends_the_budget_to_within_a_step() -> None:
    spec = isoflop_spec(RunConfig(), budgets=[1e15, 4e15], widths=[128, 256, 512])
    trials = plan_trials(spec, Path("sweeps/scaling"))
    assert len(trials) == 6
    for trial in trials:
        config = trial.config
        assert config.num_steps is not None
        per_step = config.tokens_per_step * training_flops_per_token(config.model)
        budget = 1e15 if "C=1e15" in trial.name else 4e15
        assert abs(config.num_steps * per_step - budget) <= per_step / 2 + 1


def test_a_size_of_which_a_seed_failed_is_no_rung() -> None:
    spec = isoflop_spec(RunConfig(), budgets=[1e15, 4e15], widths=[128, 256, 512])
    common: Any = {"settings": {"optimizer.learning_rate": 0.001}}
    records = [
        record_of(name, seed, "finished", 3.0 + seed, variant=name, **common)
        for name in spec.variants
        for seed in (0, 1)
    ]
    records[3] = replace(records[3], status="failed", best_validation_loss=None)
    rungs = make_sizes(spec, records)
    assert len(rungs) == len(spec.variants) - 1
    assert {rung.loss for rung in rungs} == {3.5}


@pytest.mark.parametrize(
    ("budgets", "widths", "noun"),
    [
        ([1e15, 2e15], [128, 256], "widths"),
        ([1e15], [128, 256, 512], "budgets"),
        # Names have four digits.
        ([1e15, 1.00001e15], [128, 256, 512], "budgets"),
        ([1e9, 2e9], [128, 256, 512], "steps at width"),
        ([1e15, math.nan], [128, 256, 512], "nan"),
        ([1e15, math.inf], [128, 256, 512], "inf"),
        ([1e15, -2e15], [128, 256, 512], "budget"),
        ([1e15, 2e15], [0, 128, 256], "width 0"),
        ([1e15, 2e15], [-32, 128, 256], "width -32"),
    ],
)
def test_a_ladder_that_cannot_stand_is_refused(
    budgets: list[float], widths: list[int], noun: str
) -> None:
    with pytest.raises(ConfigError, match=noun):
        isoflop_spec(RunConfig(), budgets=budgets, widths=widths)


def test_the_laws_are_found_and_a_bound_does_not_bend_them() -> None:
    size_law, loss_law, budgets = PowerLaw(0.1, 0.5), PowerLaw(20.0, -0.05), (1e15, 1e16, 1e17)
    # The best size for the first budget, three million, is smaller than all of these.
    trained = [
        SizeResult(budget, size, loss_law.at(budget) + 0.05 * distance**2)
        for budget in budgets
        for size in (5_000_000, 20_000_000, 80_000_000)
        for distance in [math.log(size) - math.log(size_law.at(budget))]
    ]
    fits = fit_budgets(budgets, trained)
    assert [fit.is_inside for fit in fits] == [False, True, True]
    assert fits[0].best_parameters == 5_000_000
    for fit in fits[1:]:
        assert fit.best_parameters == pytest.approx(size_law.at(fit.budget_flops))
        assert fit.best_loss == pytest.approx(loss_law.at(fit.budget_flops))
    sizes, losses = fit_laws(fits)
    assert sizes == pytest.approx(size_law) and losses == pytest.approx(loss_law)
    assert fit_parabola([1e6, 2e6, 4e6], [2.0, 3.0, 2.0]) is None
    with pytest.raises(DataError, match="three sizes, and there are 2"):
        fit_budgets([1e15], [SizeResult(1e15, size, 2.0) for size in (1, 2, 2)])


def test_the_next_budget_is_predicted_and_trained(
    make_spec: Any, metrics_only: Command, tmp_path: Path
) -> None:
    base = base_config(make_spec())
    per_token = training_flops_per_token(base.model)
    budget = float(f"{30 * base.tokens_per_step * per_token:.3g}")
    spec = isoflop_spec(base, budgets=[budget, 2 * budget], widths=[8, 16, 24])
    path = tmp_path / spec.name
    outcome = run_isoflop(spec, path, command=metrics_only)
    assert outcome.stopped_by is None and len(outcome.records) == 7
    # The folder's own settings tell the check from the sizes that were fitted.
    stored = load_settings(SweepConfig, path / "sweep.yaml")
    result = analyse(stored, outcome.records.values())
    assert len(result.fits) == 2
    prediction = result.prediction
    assert prediction.budget_flops == pytest.approx(4 * budget)
    # The trainer without a model finds width 16 best whatever the budget, and so do the laws.
    assert prediction.d_model == 16
    assert prediction.measured_loss == pytest.approx(prediction.predicted_loss, abs=0.05)
    unchecked = analyse(spec, [r for r in outcome.records.values() if r.variant in spec.variants])
    assert unchecked.prediction == prediction._replace(measured_loss=None)
    assert run_isoflop(spec, path, command=metrics_only).records == outcome.records
    check_report(path, num_rows=3)
