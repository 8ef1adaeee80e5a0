"""What a run cost: parameters, compute, tokens, speed, time and memory, from its own files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from groundup.planner import count_parameters, training_flops_per_token
from groundup.runs.config import model_of
from groundup.runs.metrics import Metrics


@dataclass(frozen=True)
class Cost:
    """Speed and MFU are medians; None: not known."""

    num_parameters: float | None = None
    flops: float | None = None
    """Of the tokens read so far."""
    tokens: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    seconds: float | None = None
    memory_bytes: float | None = None


def cost_of(settings: Mapping[str, Any], metrics: Metrics) -> Cost:
    """The cost of a run as far as its folder tells; `settings` by dotted names."""
    tokens, model = metrics.last("tokens"), model_of(settings)
    flops = None
    if model is not None and tokens is not None:
        flops = tokens * training_flops_per_token(model)
    return Cost(
        num_parameters=None if model is None else sum(count_parameters(model).values()),
        flops=flops,
        tokens=tokens,
        tokens_per_second=metrics.typical("tokens_per_second"),
        mfu=metrics.typical("mfu"),
        seconds=metrics.last("wall_seconds"),
        memory_bytes=metrics.last("memory_bytes"),
    )


def mean_cost(costs: Sequence[Cost]) -> Cost:
    """The mean of each value over the runs that have it."""
    means: dict[str, float | None] = {}
    for field in fields(Cost):
        values = [value for cost in costs if (value := getattr(cost, field.name)) is not None]
        means[field.name] = sum(values) / len(values) if values else None
    return Cost(**means)
