"""IsoFLOP sweep: the best model size for a compute budget, and what a larger budget would give.

The base spends each budget at several widths. A parabola in ln N finds the best size of a budget;
power laws through these predict the next one, which is then trained to see whether they hold.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy

from groundup.errors import ConfigError, DataError
from groundup.experiments.spec import SweepConfig, base_config
from groundup.experiments.trials import LEARNING_RATE, TrialRecord, model_with, summarize
from groundup.model.config import ModelConfig
from groundup.planner.parameters import count_parameters, training_flops_per_token
from groundup.runs.config import RunConfig, in_fractions

_FEWEST_STEPS = 10
_FEWEST_SIZES = 3


class PowerLaw(NamedTuple):
    """y = factor · x^exponent."""

    factor: float
    exponent: float

    def at(self, x: float) -> float:
        return float(self.factor * x**self.exponent)


class SizeResult(NamedTuple):
    """One size trained with one budget: the mean over seeds at the best of the learning rates."""

    budget_flops: float
    num_parameters: int
    loss: float


class BudgetFit(NamedTuple):
    """The best size for one budget, and whether it lies between those that were trained."""

    budget_flops: float
    best_parameters: float
    best_loss: float
    is_inside: bool


class Prediction(NamedTuple):
    """What the laws say of a budget that they have not seen, and what training it gave."""

    budget_flops: float
    best_parameters: float
    d_model: int
    num_parameters: int
    predicted_loss: float
    measured_loss: float | None = None


class IsoflopResult(NamedTuple):
    """Everything that was fitted and predicted."""

    fits: list[BudgetFit]
    size_law: PowerLaw
    loss_law: PowerLaw
    prediction: Prediction


def shape(base: ModelConfig, d_model: int) -> dict[str, int]:
    """The base grown or shrunk to a width: heads keep their size, depth and d_ff their ratio."""
    d_head = base.d_head
    if d_model < d_head or d_model % d_head:
        raise ConfigError(f"width {d_model} is not a multiple of the base's heads of {d_head}")
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


def isoflop_spec(
    base: RunConfig,
    *,
    budgets: Sequence[float],
    widths: Sequence[int],
    name: str = "scaling",
    learning_rates: Sequence[float] = (),
    seeds: Sequence[int] = (0,),
) -> SweepConfig:
    """Every width with every budget."""
    # Budgets have four digits in names.
    budgets = sorted({float(f"{budget:.4g}") for budget in budgets})
    if len(set(widths)) < _FEWEST_SIZES or len(budgets) < 2:
        raise ConfigError("a law needs at least three widths and two budgets")
    variants = {
        variant_name(budget, width): variant(base, budget, width)
        for budget in budgets
        for width in sorted(set(widths))
    }
    return SweepConfig(
        name=name,
        kind="isoflop",
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
    steps = budget / (
        base.tokens_per_step * training_flops_per_token(model_with(base.model, settings))
    )
    if not _FEWEST_STEPS <= steps < float("inf"):
        raise ConfigError(
            f"{budget:.3g} FLOPs are {steps:.3g} steps at width {width}: give a greater budget"
        )
    return {**settings, "num_steps": round(steps), **in_fractions(base)}


def analyse(spec: SweepConfig, records: Iterable[TrialRecord]) -> IsoflopResult:
    """Fit the budgets with several widths, predict the next one, and compare with its training."""
    base = base_config(spec)
    sizes = make_sizes(spec, records)
    widths = Counter(map(budget_of, spec.variants))
    fits = fit_budgets([one for one in widths if widths[one] >= _FEWEST_SIZES], sizes)
    size_law, loss_law = fit_laws(fits)
    last, before = fits[-1].budget_flops, fits[-2].budget_flops
    budget = float(f"{last * last / before:.4g}")
    best, d_head = size_law.at(budget), base.model.d_head

    def count(width: int) -> int:
        model = model_with(base.model, shape(base.model, width))
        return sum(count_parameters(model).values())

    width = min(range(d_head, 1000 * d_head, d_head), key=lambda width: abs(count(width) - best))
    measured = [size.loss for size in sizes if size.budget_flops == budget]
    prediction = Prediction(
        budget, best, width, count(width), loss_law.at(budget), min(measured, default=None)
    )
    return IsoflopResult(fits, size_law, loss_law, prediction)


def make_sizes(spec: SweepConfig, records: Iterable[TrialRecord]) -> list[SizeResult]:
    """The mean loss of every size and budget at its best learning rate; unsound ones left out."""
    base = base_config(spec)
    best: dict[str, SizeResult] = {}
    for result in summarize(records):
        name = result.variant
        if name not in spec.variants or result.loss is None or not result.is_sound:
            continue
        model = model_with(base.model, spec.variants[name])
        num_parameters = sum(count_parameters(model).values())
        # The best learning rate comes first.
        best.setdefault(name, SizeResult(budget_of(name), num_parameters, result.loss.mean))
    return sorted(best.values())


def fit_budgets(budgets: Iterable[float], trained: Sequence[SizeResult]) -> list[BudgetFit]:
    """A parabola for each budget; one that bends the wrong way takes the best size it has."""
    fits = []
    for budget in budgets:
        here = [size for size in trained if size.budget_flops == budget]
        sizes = [float(size.num_parameters) for size in here]
        losses = [size.loss for size in here]
        if len(set(sizes)) < _FEWEST_SIZES:
            raise DataError(
                f"{budget:.3g} FLOPs need losses of three sizes, and there are {len(set(sizes))}: "
                f"lower the learning rate if the others diverged, or add widths"
            )
        best = fit_parabola(sizes, losses)
        # Outside the sizes trained a parabola means nothing: the best of them is all that is known.
        is_inside = best is not None and min(sizes) <= best[0] <= max(sizes)
        loss, size = min(zip(losses, sizes, strict=True))
        if best is not None and is_inside:
            size, loss = best
        fits.append(BudgetFit(budget, size, loss, is_inside))
    return fits


def fit_laws(fits: Sequence[BudgetFit]) -> tuple[PowerLaw, PowerLaw]:
    """Best size and its loss as power laws of the budget. A best size at the end of those trained
    is only a bound, so it counts where nothing else does."""
    inside = [fit for fit in fits if fit.is_inside]
    used = inside if len(inside) >= 2 else fits
    budgets = [fit.budget_flops for fit in used]
    if any(fit.best_loss <= 0 for fit in used):
        raise DataError("a fitted loss is not above 0: add sizes around the best one")
    sizes = fit_power_law(budgets, [fit.best_parameters for fit in used])
    return sizes, fit_power_law(budgets, [fit.best_loss for fit in used])


def fit_parabola(sizes: Sequence[float], losses: Sequence[float]) -> tuple[float, float] | None:
    """The size with the least loss, and that loss, by least squares over (ln N, loss); None where
    the parabola bends the wrong way."""
    logs = numpy.log(numpy.asarray(sizes, dtype=float))
    # Centred, for the squares of large logarithms are nearly alike.
    middle = float(logs.mean())
    square, linear, constant = map(float, numpy.polyfit(logs - middle, losses, 2))
    if square <= 0:
        return None
    offset = -linear / (2 * square)
    # Far outside it means nothing, and may be too large for a float.
    return math.exp(min(middle + offset, 700.0)), constant - square * offset**2


def fit_power_law(xs: Sequence[float], ys: Sequence[float]) -> PowerLaw:
    """Least squares over (ln x, ln y)."""
    exponent, constant = numpy.polyfit(numpy.log(xs), numpy.log(ys), 1)
    return PowerLaw(math.exp(float(constant)), float(exponent))
