"""A ladder of sizes at fixed compute: the best size for a budget, and what a greater one gives.

The base is trained at several widths, each for the steps that spend a budget. For each budget a
parabola in ln N finds the best size; power laws through the best of all budgets predict the next
one, which is then trained to see if they hold.
"""

import signal
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from groundup.errors import ConfigError, DataError
from groundup.experiments.fits import (
    FloorFit,
    PowerLaw,
    fit_parabola,
    fit_power_law,
    judge_floor_law,
)
from groundup.experiments.runner import Command, train_command
from groundup.experiments.spec import SweepConfig, base_config
from groundup.experiments.sweep import PointResult, run_sweep
from groundup.experiments.trials import LEARNING_RATE, Point, model_with
from groundup.files import write_json_atomic
from groundup.model.config import ModelConfig
from groundup.planner.flops import training_flops_per_token
from groundup.planner.parameters import count_parameters
from groundup.runs.config import RunConfig, in_fractions

_FEWEST_STEPS = 10


@dataclass(frozen=True)
class Rung:
    """One size trained with one budget: the mean over seeds at the best of the learning rates."""

    budget_flops: float
    d_model: int
    num_layers: int
    num_parameters: int
    tokens: int
    learning_rate: float
    loss: float


@dataclass(frozen=True)
class BudgetFit:
    """The best size for one budget."""

    budget_flops: float
    best_parameters: float
    best_loss: float
    is_inside: bool
    """Does the best size lie between those that were trained?"""


@dataclass(frozen=True)
class Prediction:
    """What the laws say of a budget that they have not seen, and what training it gave."""

    budget_flops: float
    best_parameters: float
    d_model: int
    num_parameters: int
    predicted_loss: float
    predicted_with_floor: float | None = None
    """By a law that leaves a loss which no budget takes away, where there is one."""
    measured_loss: float | None = None


@dataclass(frozen=True)
class ScalingOutcome:
    """Everything that was measured, fitted and predicted."""

    folder: Path
    rungs: list[Rung]
    fits: list[BudgetFit]
    size_law: PowerLaw | None = None
    loss_law: PowerLaw | None = None
    floor_fit: FloorFit | None = None
    prediction: Prediction | None = None
    stopped_by: signal.Signals | None = None


def shape(base: ModelConfig, d_model: int) -> dict[str, int]:
    """The base grown or shrunk to a width: heads keep their size, depth and d_ff their ratio."""
    d_head = base.d_head
    if d_model < d_head or d_model % d_head:
        raise ConfigError(
            f"width {d_model} cannot be cut into the base's heads of {d_head}: choose multiples "
            f"of {d_head}"
        )
    d_ff = max(1, round(base.feed_forward_dim / base.d_model * d_model))
    num_heads = d_model // d_head
    sizes = {
        "model.d_model": d_model,
        "model.num_heads": num_heads,
        "model.num_layers": max(1, round(base.num_layers * d_model / base.d_model)),
        "model.d_ff": 8 * round(d_ff / 8) if d_ff >= 256 else d_ff,
    }
    if base.num_kv_heads is not None:
        wanted = max(1, num_heads * base.num_kv_heads / base.num_heads)
        divisors = [number for number in range(1, num_heads + 1) if num_heads % number == 0]
        sizes["model.num_kv_heads"] = max(number for number in divisors if number <= wanted)
    return sizes


def scaling_spec(
    base: RunConfig,
    *,
    budgets: Sequence[float],
    widths: Sequence[int],
    name: str = "scaling",
    learning_rates: Sequence[float] = (),
    seeds: Sequence[int] = (0,),
) -> SweepConfig:
    """The sweep behind a ladder: every width with every budget."""
    if len(set(widths)) < 3:
        raise ConfigError(f"a ladder needs at least three widths, but has {sorted(set(widths))}")
    rounded: dict[float, float] = {}
    for budget in budgets:
        if not 0 < budget < float("inf"):
            raise ConfigError(f"a budget of {budget:g} FLOPs trains nothing: give one above 0")
        other = rounded.setdefault(float(f"{budget:.4g}"), budget)
        if other != budget:
            raise ConfigError(
                f"budgets {other:.12g} and {budget:.12g} agree to four digits: give them further "
                f"apart"
            )
    if len(rounded) < 2:
        raise ConfigError("a law needs at least two budgets: give more with --budgets")
    variants = {}
    for budget in sorted(rounded):
        for width in sorted(set(widths)):
            variants[variant_name(budget, width)] = variant(base, budget, width)
    return SweepConfig(
        name=name,
        why="Which size is best for a budget, and what would the next budget give?",
        base=base.model_dump(mode="json"),
        variants=variants,
        grid={LEARNING_RATE: sorted(learning_rates) or [base.optimizer.learning_rate]},
        seeds=list(seeds),
    )


def variant_name(budget: float, width: int) -> str:
    """What a trial of that budget and width is called."""
    return f"C={budget:.4g}+d={width}".replace("e+", "e")


def budget_of(name: str) -> float:
    """The budget in the name of a variant."""
    return float(name.split("+")[0].removeprefix("C="))


def variant(base: RunConfig, budget: float, width: int) -> dict[str, Any]:
    """The shape of a width and the steps that spend the budget on it."""
    settings = shape(base.model, width)
    flops_per_token = training_flops_per_token(model_with(base.model, settings))
    num_steps = round(budget / (base.tokens_per_step * flops_per_token))
    if num_steps < _FEWEST_STEPS:
        raise ConfigError(
            f"{budget:.3g} FLOPs are {num_steps} steps at width {width}: give a greater budget, "
            f"smaller widths or a smaller batch_size"
        )
    return {**settings, "num_steps": num_steps, **in_fractions(base)}


def run_scaling(
    spec: SweepConfig,
    path: Path,
    *,
    check: bool = True,
    jobs: int | None = None,
    command: Command = train_command,
) -> ScalingOutcome:
    """Train the ladder, fit, predict the next budget and, with `check`, train that too.

    Writes scaling.json into the folder.
    """
    outcome = run_sweep(spec, path, jobs=jobs, command=command)
    if outcome.stopped_by is not None:
        return ScalingOutcome(path, [], [], stopped_by=outcome.stopped_by)
    rungs = make_rungs(spec, outcome.results)
    fits = fit_budgets(dict.fromkeys(map(budget_of, spec.variants)), rungs)
    size_law, loss_law = fit_laws(fits)
    floor_fit = fit_floor(fits)
    prediction = predict_next(base_config(spec), fits, size_law, loss_law, floor_fit)
    stopped_by = None
    if check:
        prediction, stopped_by = _measure(spec, path, prediction, jobs, command)
    result = ScalingOutcome(
        path, rungs, fits, size_law, loss_law, floor_fit, prediction, stopped_by
    )
    values = asdict(result)
    write_json_atomic(path / "scaling.json", {**values, "folder": str(path), "stopped_by": None})
    return result


def make_rungs(spec: SweepConfig, results: Sequence[PointResult]) -> list[Rung]:
    """The mean loss of every size and budget at its best learning rate; unsound ones left out."""
    base = base_config(spec)
    best: dict[str, Rung] = {}
    for result in results:
        name = result.variant
        if name not in spec.variants or result.loss is None or not result.is_sound:
            continue
        settings = spec.variants[name]
        model = model_with(base.model, settings)
        rung = Rung(
            budget_flops=budget_of(name),
            d_model=model.d_model,
            num_layers=model.num_layers,
            num_parameters=sum(count_parameters(model).values()),
            tokens=settings["num_steps"] * base.tokens_per_step,
            learning_rate=result.settings[LEARNING_RATE],
            loss=result.loss.mean,
        )
        if name not in best or rung.loss < best[name].loss:
            best[name] = rung
    return sorted(best.values(), key=lambda rung: (rung.budget_flops, rung.num_parameters))


def fit_budgets(budgets: Iterable[float], rungs: Sequence[Rung]) -> list[BudgetFit]:
    """A parabola for each budget; one that bends the wrong way takes the best size it has.

    A budget that too few sizes came to their end with is a DataError.
    """
    fits = []
    for budget in budgets:
        here = [rung for rung in rungs if rung.budget_flops == budget]
        sizes = [float(rung.num_parameters) for rung in here]
        losses = [rung.loss for rung in here]
        if len(set(sizes)) < 3:
            raise DataError(
                f"the ladder of {budget:.3g} FLOPs needs losses of three sizes, but there are "
                f"{len(set(sizes))}: see why the others did not finish; lower the learning rate "
                f"if they diverged, or add widths"
            )
        best = fit_parabola(sizes, losses)
        # Far outside the ladder a parabola means nothing: its best rung is all that is known.
        is_inside = best is not None and min(sizes) <= best[0] <= max(sizes)
        loss, size = min(zip(losses, sizes, strict=True))
        if best is not None and is_inside:
            size, loss = best
        fits.append(BudgetFit(budget, size, loss, is_inside))
    return fits


def fit_laws(fits: Sequence[BudgetFit]) -> tuple[PowerLaw, PowerLaw]:
    """Best size and its loss as power laws of the budget.

    A best size at the end of the ladder is only a bound, so it counts where nothing else does.
    """
    inside = [fit for fit in fits if fit.is_inside]
    used = inside if len(inside) >= 2 else fits
    budgets = [fit.budget_flops for fit in used]
    if any(fit.best_loss <= 0 for fit in used):
        raise DataError("a fitted loss is not above 0: add sizes around the best one")
    sizes = fit_power_law(budgets, [fit.best_parameters for fit in used])
    return sizes, fit_power_law(budgets, [fit.best_loss for fit in used])


def fit_floor(fits: Sequence[BudgetFit]) -> FloorFit | None:
    """The loss as a power law of the budget above a floor, if four budgets or more determine one.

    A best size at the end of the ladder is only a bound, and never counts here.
    """
    inside = [fit for fit in fits if fit.is_inside]
    return judge_floor_law([f.budget_flops for f in inside], [f.best_loss for f in inside])


def predict_next(
    base: RunConfig,
    fits: Sequence[BudgetFit],
    size_law: PowerLaw,
    loss_law: PowerLaw,
    floor_fit: FloorFit | None = None,
) -> Prediction:
    """The next budget by the ratio of the last two, its best size, and the nearest real width."""
    last, before = fits[-1].budget_flops, fits[-2].budget_flops
    budget = float(f"{last * last / before:.4g}")
    best = size_law.at(budget)
    d_head = base.model.d_head

    def count(width: int) -> int:
        model = model_with(base.model, shape(base.model, width))
        return sum(count_parameters(model).values())

    width = min(range(d_head, 1000 * d_head, d_head), key=lambda width: abs(count(width) - best))
    above_floor = None if floor_fit is None else floor_fit.law.at(budget)
    return Prediction(budget, best, width, count(width), loss_law.at(budget), above_floor)


def _measure(
    spec: SweepConfig,
    path: Path,
    prediction: Prediction,
    jobs: int | None,
    command: Command,
) -> tuple[Prediction, signal.Signals | None]:
    base = base_config(spec)
    name = variant_name(prediction.budget_flops, prediction.d_model)
    bundle = variant(base, prediction.budget_flops, prediction.d_model)
    grown = spec.model_copy(update={"variants": {**spec.variants, name: bundle}})
    points = [Point({LEARNING_RATE: rate}, name) for rate in spec.grid[LEARNING_RATE]]
    outcome = run_sweep(grown, path, points=points, jobs=jobs, command=command)
    rungs = make_rungs(grown, outcome.results)
    losses = [rung.loss for rung in rungs if rung.budget_flops == prediction.budget_flops]
    return replace(prediction, measured_loss=min(losses, default=None)), outcome.stopped_by
