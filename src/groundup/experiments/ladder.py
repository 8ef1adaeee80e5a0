"""What a ladder trains: the base at several widths, each for the steps that spend a budget."""

from collections.abc import Sequence
from typing import Any

from groundup.errors import ConfigError
from groundup.experiments.rate_search import LEARNING_RATE
from groundup.experiments.spec import SweepConfig
from groundup.model.config import ModelConfig
from groundup.planner.flops import training_flops_per_token
from groundup.planner.parameters import count_parameters
from groundup.runs.config import RunConfig, scaled_steps

_FEWEST_STEPS = 10


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
    for budget in budgets:
        if not 0 < budget < float("inf"):
            raise ConfigError(f"a budget of {budget:g} FLOPs trains nothing: give one above 0")
    if len(set(budgets)) < 2:
        raise ConfigError("a law needs at least two budgets: give more with --budgets")
    variants = {}
    for budget in sorted({float(f"{budget:.4g}") for budget in budgets}):
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
    flops_per_step = base.tokens_per_step * training_flops_per_token(ladder_model(base, settings))
    num_steps = round(budget / flops_per_step)
    if num_steps < _FEWEST_STEPS:
        raise ConfigError(
            f"{budget:.3g} FLOPs are {num_steps} steps at width {width}: give a greater budget, "
            f"smaller widths or a smaller batch_size"
        )
    return {**settings, **scaled_steps(base, num_steps)}


def ladder_model(base: RunConfig, settings: dict[str, Any]) -> ModelConfig:
    """The base's model with the settings of a variant."""
    update = {k.removeprefix("model."): v for k, v in settings.items() if k.startswith("model.")}
    return base.model.model_copy(update=update)


def count_at(base: RunConfig, width: int) -> int:
    """The parameters of the model of that width."""
    return sum(count_parameters(ladder_model(base, shape(base.model, width))).values())
