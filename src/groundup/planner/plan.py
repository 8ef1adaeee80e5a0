"""The plan of a run: all of the planner's results as one value."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from groundup.errors import ConfigError
from groundup.model.config import PRESETS, ModelConfig
from groundup.optim.config import OptimizerName
from groundup.planner.duration import ASSUMED_MFU, Duration
from groundup.planner.hardware import PRICES, Accelerator, device_kind, rate_in
from groundup.planner.memory import (
    Execution,
    MeasuredStep,
    StepMemory,
    choose_micro_batch,
    step_memory,
    textbook_memory,
)
from groundup.planner.parameters import (
    FLOAT32_BYTES,
    OPTIMAL_SOURCE,
    count_parameters,
    flop_fractions,
    forward_flops,
    layer_flops,
    optimal_parameters,
    optimal_tokens,
)

_SIZES = ("gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl")
HELD = ("weights", "gradients", "optimizer_state", "weight_copies")
"""What a step keeps in memory whatever its micro-batch."""


@dataclass(frozen=True)
class Plan:
    """Parameters, FLOPs, memory, time and price of a run."""

    config: ModelConfig
    micro_batch: int
    """As given, or the largest divisor of the batch size that fits; 0 if none does."""
    memory: StepMemory
    memory_bytes: int
    duration: Duration

    @property
    def num_parameters(self) -> int:
        return sum(count_parameters(self.config).values())

    @property
    def num_tokens(self) -> int:
        return self.duration.batch_size * self.config.context_length * self.duration.num_steps

    def within(self, seconds: float) -> "Plan":
        """Replace the number of steps with as many as fit in a time."""
        return replace(self, duration=self.duration.within(seconds))

    @property
    def peak_bytes(self) -> int | None:
        """Peak memory of a step; None if not even one sequence fits."""
        if self.micro_batch == 0:
            return None
        return self.memory.bytes_at(self.micro_batch, self.duration.batch_size // self.micro_batch)

    @property
    def fits(self) -> bool:
        """Whether a step fits in the memory of the device."""
        return self.peak_bytes is not None and self.peak_bytes <= self.memory_bytes

    def to_json(self) -> dict[str, Any]:
        """Return all results; counts, bytes and FLOPs are integers."""
        config, memory, duration = self.config, self.memory, self.duration
        flops = forward_flops(config)
        num_tokens, tokens_per_step = self.num_tokens, duration.batch_size * config.context_length
        enough_tokens = optimal_tokens(self.num_parameters)
        enough = replace(duration, num_steps=-(-enough_tokens // tokens_per_step))
        best = optimal_parameters(duration.total_flops)
        return {
            "model": config.model_dump(mode="json"),
            "parameters": {**count_parameters(config), "total": self.num_parameters},
            "weight_bytes": FLOAT32_BYTES * self.num_parameters,
            "forward_flops": {
                "num_tokens": config.context_length,
                "per_layer": layer_flops(config, config.context_length),
                **flops,
                "total": sum(flops.values()),
            },
            "flops_per_step": duration.flops_per_step,
            "shares": {
                "model": flop_fractions(config),
                "by_size": {name: flop_fractions(PRESETS[name]) for name in _SIZES},
                "by_context": {
                    str(factor * config.context_length): flop_fractions(
                        config, factor * config.context_length
                    )
                    for factor in (1, 2, 4, 8, 16)
                },
            },
            "memory": {
                "device": memory.execution.device,
                "precision": memory.execution.precision,
                **{name: getattr(memory, name) for name in HELD},
                "activations_per_sequence": memory.activations_per_sequence,
                "bytes_per_sequence": memory.bytes_per_sequence,
                "memory_bytes": self.memory_bytes,
                "micro_batch": self.micro_batch,
                "peak_bytes": self.peak_bytes,
                "fits": self.fits,
            },
            "textbook_memory": textbook_memory(config, self.memory_bytes),
            "duration": {
                "device": duration.device,
                "precision": duration.precision,
                "peak_flops_per_second": round(duration.peak_flops_per_second),
                "mfu": duration.mfu,
                "batch_size": duration.batch_size,
                "num_steps": duration.num_steps,
                "num_tokens": num_tokens,
                "total_flops": duration.total_flops,
                "seconds": round(duration.seconds),
                "days": round(duration.seconds / 86_400, 2),
                "dollars": None if duration.dollars is None else round(duration.dollars, 2),
                "derivation": duration.derivation(),
            },
            "compute_optimal": {
                "tokens_per_parameter": round(num_tokens / self.num_parameters, 2),
                "tokens_for_this_model": enough_tokens,
                "steps_for_this_model": enough.num_steps,
                "seconds_for_this_model": round(enough.seconds),
                "parameters_for_this_compute": best,
                "tokens_for_this_compute": optimal_tokens(best),
                "source": OPTIMAL_SOURCE,
            },
        }


def make_plan(
    config: ModelConfig,
    accelerator: Accelerator,
    *,
    batch_size: int,
    num_steps: int,
    precision: Literal["auto", "float32", "tf32", "bfloat16"] = "auto",
    mfu: float = ASSUMED_MFU,
    optimizer: OptimizerName = "adamw",
    micro_batch: int | None = None,
    measured: MeasuredStep | None = None,
    **options: Any,
) -> Plan:
    """Plan a run on one device.

    precision: of matmuls; auto is the device's fastest.
    micro_batch: sequences per forward pass; None: as chosen by `groundup train`.
    measured: a real step on the device, whose peak corrects the estimate.
    options: keyword arguments of `step_memory`.
    """
    if precision == "auto":
        precision = "float32" if accelerator.bfloat16_flops_per_second is None else "bfloat16"
    elif precision == "tf32" and accelerator.tf32_flops_per_second is None:
        precision = "float32"
    peak = rate_in(accelerator, precision)
    if peak is None:
        raise ConfigError(
            f"{accelerator.name} does not support {precision}; plan with --precision float32"
        )
    execution = Execution(
        device_kind(accelerator), "bfloat16" if precision == "bfloat16" else "float32"
    )
    memory = step_memory(config, execution, optimizer, accelerator.memory_bytes, **options)
    if measured is not None:
        memory = memory.corrected(measured)
    if micro_batch is None:
        micro_batch = choose_micro_batch(memory, batch_size, accelerator.memory_bytes)
    duration = Duration(
        forward_flops=sum(forward_flops(config).values()),
        batch_size=batch_size,
        num_steps=num_steps,
        peak_flops_per_second=peak,
        mfu=mfu,
        device=accelerator.name,
        precision=precision,
        price=PRICES.get(accelerator.name),
        source=accelerator.source,
    )
    return Plan(
        config=config,
        micro_batch=micro_batch,
        memory=memory,
        memory_bytes=accelerator.memory_bytes,
        duration=duration,
    )
