"""What a run was to cost by the planner's rules, beside what it did cost."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from groundup.model.config import ModelConfig
from groundup.planner import (
    Execution,
    count_parameters,
    expected_duration,
    memory_options,
    peak_flops_per_second,
    step_memory,
    training_flops_per_token,
)
from groundup.planner.hardware import Precision, find_accelerator
from groundup.runs.config import model_of
from groundup.runs.metrics import Metrics, as_float

_OPTIMIZERS = ("adamw", "sgd", "muon")


@dataclass(frozen=True)
class Cost:
    """Planned values come from the settings and the device's best rate, as the run noted it; the
    others from metrics.jsonl. None: not known."""

    num_parameters: int | None = None
    flops_per_token: int | None = None
    planned_tokens: int | None = None
    planned_tokens_per_second: float | None = None
    planned_seconds: float | None = None
    """Of the tokens that were read, so that a run which ended early is set against its own part of
    the plan; of all while none were."""
    planned_mfu: float | None = None
    planned_bytes: int | None = None
    """The peak of a step, weights, gradients, optimizer state and activations; where the process
    is what is measured, its own memory as well."""
    tokens: int | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    seconds: float | None = None
    memory_bytes: int | None = None

    @property
    def flops(self) -> float | None:
        """Of the tokens read so far."""
        if self.flops_per_token is None or self.tokens is None:
            return None
        return float(self.flops_per_token) * self.tokens


def cost_of(settings: Mapping[str, Any], environment: Mapping[str, Any], metrics: Metrics) -> Cost:
    """The cost of a run as far as its folder tells; `settings` by dotted names."""
    tokens, memory_bytes = metrics.last("tokens"), metrics.last("memory_bytes")
    cost = Cost(
        tokens=None if tokens is None else int(tokens),
        tokens_per_second=metrics.typical("tokens_per_second"),
        mfu=metrics.typical("mfu"),
        seconds=metrics.last("wall_seconds"),
        memory_bytes=None if memory_bytes is None else int(memory_bytes),
    )
    model, num_steps = model_of(settings), settings.get("num_steps")
    batch_size = settings.get("batch_size")
    if model is None:
        return cost
    cost = replace(
        cost,
        num_parameters=sum(count_parameters(model).values()),
        flops_per_token=training_flops_per_token(model),
    )
    if not isinstance(num_steps, int) or not isinstance(batch_size, int):
        return cost
    cost = replace(
        cost,
        planned_tokens=num_steps * batch_size * model.context_length,
        planned_bytes=_planned_bytes(settings, environment, model, batch_size),
    )
    precision, execution = (
        _precision_of(settings, environment),
        _execution_of(settings, environment),
    )
    peak = _peak(cost, environment, precision)
    if peak is None:
        return cost
    duration = expected_duration(
        model,
        batch_size=batch_size,
        num_steps=num_steps,
        peak_flops_per_second=peak,
        device=str(environment.get("device", "")),
        kind="cuda" if execution is None else execution.device,
        precision=precision,
    )
    planned_tokens = cost.planned_tokens or 0
    fraction_read = tokens / planned_tokens if tokens and planned_tokens else 1.0
    return replace(
        cost,
        planned_tokens_per_second=planned_tokens / duration.seconds,
        planned_seconds=fraction_read * duration.seconds,
        planned_mfu=duration.mfu,
    )


def mean_cost(costs: Sequence[Cost]) -> Cost:
    """The mean of each value over the runs that have it."""
    means: dict[str, float | None] = {}
    for field in fields(Cost):
        values = [value for cost in costs if (value := getattr(cost, field.name)) is not None]
        means[field.name] = sum(values) / len(values) if values else None
    return Cost(**means)  # type: ignore[arg-type]


def _peak(cost: Cost, environment: Mapping[str, Any], precision: Precision) -> float | None:
    """FLOPs per second at best: as the run noted, as the planner's table has it for its device, or
    the rate that its MFU was told by."""
    noted = as_float(environment.get("peak_flops_per_second"))
    if noted > 0:
        return noted
    known = peak_flops_per_second(str(environment.get("device", "")), precision)
    if known is not None or not (cost.tokens_per_second and cost.mfu and cost.flops_per_token):
        return known
    return cost.tokens_per_second * cost.flops_per_token / cost.mfu


def _precision_of(settings: Mapping[str, Any], environment: Mapping[str, Any]) -> Precision:
    """What matmuls were computed in: the log of kernels says it where settings say "auto"."""
    chosen = str(settings.get("precision", "auto"))
    if chosen == "auto":
        found = re.search(r"precision (\w+)", str(environment.get("kernels", "")))
        chosen = found[1] if found else "bfloat16"
    if Execution.of("cuda", chosen).precision == "bfloat16":
        return "bfloat16"
    return "tf32" if settings.get("tf32", True) else "float32"


def _planned_bytes(
    settings: Mapping[str, Any],
    environment: Mapping[str, Any],
    model: ModelConfig,
    batch_size: int,
) -> int | None:
    optimizer = settings.get("optimizer.name", "adamw")
    execution = _execution_of(settings, environment)
    if execution is None or optimizer not in _OPTIMIZERS:
        return None
    micro_batch = settings.get("micro_batch_size")
    size = micro_batch if isinstance(micro_batch, int) else batch_size
    device = find_accelerator(str(environment.get("device", "")))
    device_bytes = None if device is None else device.memory_bytes
    memory = step_memory(model, execution, optimizer, device_bytes, **memory_options(settings))
    return memory.bytes_at(size, batch_size // size)


def _execution_of(settings: Mapping[str, Any], environment: Mapping[str, Any]) -> Execution | None:
    """Where the run computed; None where neither settings nor environment tell."""
    device = str(settings.get("device", ""))
    if device.partition(":")[0] not in ("cpu", "cuda", "mps"):
        return None
    return Execution.of(device, _precision_of(settings, environment))
