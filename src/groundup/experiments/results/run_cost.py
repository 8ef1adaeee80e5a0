"""What a run was to cost by the planner's rules, beside what it did cost."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from groundup.model.config import ModelConfig
from groundup.planner import (
    Execution,
    count_parameters,
    describe_cpu,
    expected_duration,
    peak_flops_per_second,
    training_flops_per_token,
    training_memory,
)
from groundup.planner.duration import Duration
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
    model = model_of(settings)
    flops_per_token = training_flops_per_token(model) if model else None
    planned_tokens = _planned_tokens(settings, model)
    peak = (
        _noted_peak(environment)
        or _peak(settings, environment)
        or _implied_peak(flops_per_token, metrics)
    )
    duration = _duration(settings, environment, model, peak)
    tokens, memory_bytes = metrics.last("tokens"), metrics.last("memory_bytes")
    fraction_read = tokens / planned_tokens if tokens and planned_tokens else 1.0
    return Cost(
        num_parameters=sum(count_parameters(model).values()) if model else None,
        flops_per_token=flops_per_token,
        planned_tokens=planned_tokens,
        planned_tokens_per_second=(
            planned_tokens / duration.seconds if planned_tokens and duration else None
        ),
        planned_seconds=fraction_read * duration.seconds if duration else None,
        planned_mfu=duration.mfu if duration else None,
        planned_bytes=_planned_bytes(settings, environment, model),
        tokens=None if tokens is None else int(tokens),
        tokens_per_second=metrics.typical("tokens_per_second"),
        mfu=metrics.typical("mfu"),
        seconds=metrics.last("wall_seconds"),
        memory_bytes=None if memory_bytes is None else int(memory_bytes),
    )


def mean_cost(costs: Sequence[Cost]) -> Cost:
    """The mean of each value over the runs that have it."""
    means: dict[str, float | None] = {}
    for field in fields(Cost):
        values = [value for cost in costs if (value := getattr(cost, field.name)) is not None]
        means[field.name] = sum(values) / len(values) if values else None
    return Cost(**means)  # type: ignore[arg-type]


def _planned_tokens(settings: Mapping[str, Any], model: ModelConfig | None) -> int | None:
    num_steps, batch_size = settings.get("num_steps"), settings.get("batch_size")
    if model is None or not isinstance(num_steps, int) or not isinstance(batch_size, int):
        return None
    return num_steps * batch_size * model.context_length


def _noted_peak(environment: Mapping[str, Any]) -> float | None:
    """FLOPs per second at best, by which the log of the run told its time."""
    rate = as_float(environment.get("peak_flops_per_second"))
    return rate if rate > 0 else None


def _peak(settings: Mapping[str, Any], environment: Mapping[str, Any]) -> float | None:
    """The same of a run that did not note it, on a device that the planner's table knows."""
    precision = _precision_of(settings, environment)
    return peak_flops_per_second(str(environment.get("device", "")), precision)


def _implied_peak(flops_per_token: int | None, metrics: Metrics) -> float | None:
    """The rate that its MFU was told by, where no table has it either."""
    rate, mfu = metrics.typical("tokens_per_second"), metrics.typical("mfu")
    return rate * flops_per_token / mfu if rate and mfu and flops_per_token else None


def _precision_of(settings: Mapping[str, Any], environment: Mapping[str, Any]) -> Precision:
    """What matmuls were computed in: the log of kernels says it where settings say "auto"."""
    chosen = str(settings.get("precision", "auto"))
    if chosen == "auto":
        found = re.search(r"precision (\w+)", str(environment.get("kernels", "")))
        chosen = found[1] if found else "bfloat16"
    if chosen == "bfloat16":
        return "bfloat16"
    return "tf32" if settings.get("tf32", True) else "float32"


def _duration(
    settings: Mapping[str, Any],
    environment: Mapping[str, Any],
    model: ModelConfig | None,
    peak_flops_per_second: float | None,
) -> Duration | None:
    """The time of the steps as the log of the run gave it before the first one."""
    num_steps, batch_size = settings.get("num_steps"), settings.get("batch_size")
    if model is None or peak_flops_per_second is None:
        return None
    if not isinstance(num_steps, int) or not isinstance(batch_size, int):
        return None
    execution = _execution_of(settings, environment)
    kind = "cuda" if execution is None else execution.device
    device = str(environment.get("device", ""))
    if kind == "cpu":
        device = describe_cpu(int(environment.get("num_threads") or 1), 0).name
    return expected_duration(
        model,
        batch_size=batch_size,
        num_steps=num_steps,
        peak_flops_per_second=peak_flops_per_second,
        device=device,
        kind=kind,
        precision=_precision_of(settings, environment),
    )


def _planned_bytes(
    settings: Mapping[str, Any], environment: Mapping[str, Any], model: ModelConfig | None
) -> int | None:
    optimizer, batch_size = settings.get("optimizer.name", "adamw"), settings.get("batch_size")
    if model is None or not isinstance(batch_size, int) or optimizer not in _OPTIMIZERS:
        return None
    micro_batch = settings.get("micro_batch_size")
    size = micro_batch if isinstance(micro_batch, int) else batch_size
    execution = _execution_of(settings, environment)
    if execution is None:
        return None
    device = find_accelerator(str(environment.get("device", "")))
    device_bytes = None if device is None else device.memory_bytes
    memory = training_memory(model, execution, optimizer, device_bytes)
    return memory.process_bytes + memory.bytes_at(size, accumulates=size < batch_size)


def _execution_of(settings: Mapping[str, Any], environment: Mapping[str, Any]) -> Execution | None:
    """Where the run computed; None where neither settings nor environment tell."""
    device = str(settings.get("device", ""))
    if device.partition(":")[0] not in ("cpu", "cuda", "mps"):
        return None
    return Execution.of(device, _precision_of(settings, environment))
