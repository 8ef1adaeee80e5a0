"""A run on one page before it starts: everything the planner knows, as one value.

`two_line_plan` is the same in two lines, for the log of a run.
"""

from dataclasses import dataclass
from typing import Any, Literal

from groundup.errors import ConfigError
from groundup.model.config import ModelConfig
from groundup.planner.activations import Execution
from groundup.planner.duration import Duration, estimate_duration
from groundup.planner.flops import (
    OptimizerName,
    forward_flops,
    layer_flops,
    step_flops,
    training_flops_per_token,
    update_flops,
)
from groundup.planner.hardware import Accelerator, device_kind, fastest_precision, rate_in
from groundup.planner.memory import TrainingMemory, training_memory, training_state_bytes
from groundup.planner.optimal import SOURCE, optimal_parameters, optimal_tokens
from groundup.planner.parameters import count_parameters
from groundup.planner.prices import PRICES, Price
from groundup.planner.quantities import show_bytes, show_count, show_flops
from groundup.planner.shares import flop_shares, shares_by_context, shares_by_size
from groundup.planner.textbook_memory import TextbookMemory, textbook_memory

_FLOAT32_BYTES = 4


@dataclass(frozen=True)
class Plan:
    """What a run costs: parameters, operations, memory, time, money."""

    config: ModelConfig
    batch_size: int
    micro_batch: int
    """Sequences at once: the greatest divisor of the batch that fits; 0 where none does."""
    parameters: dict[str, int]
    flops_per_layer: dict[str, int]
    flops: dict[str, int]
    update_flops: int
    memory: TrainingMemory
    textbook: TextbookMemory
    memory_bytes: int
    """What the device has."""
    duration: Duration

    @property
    def num_parameters(self) -> int:
        return sum(self.parameters.values())

    @property
    def num_tokens(self) -> int:
        """Of the whole run."""
        return self.batch_size * self.config.context_length * self.duration.num_steps

    @property
    def peak_bytes(self) -> int | None:
        """The most memory that a step of ours takes, where one fits."""
        if self.micro_batch == 0:
            return None
        accumulates = self.micro_batch < self.batch_size
        return self.memory.bytes_at(self.micro_batch, accumulates=accumulates)

    def to_json(self) -> dict[str, Any]:
        """Every figure; counts, bytes and operations are integers."""
        return {
            "model": self.config.model_dump(mode="json"),
            "parameters": {**self.parameters, "total": self.num_parameters},
            "weight_bytes": _FLOAT32_BYTES * self.num_parameters,
            "forward_flops": {
                "num_tokens": self.config.context_length,
                "per_layer": self.flops_per_layer,
                **self.flops,
                "total": sum(self.flops.values()),
            },
            "flops_per_step": step_flops(self.config, self.batch_size),
            "update_flops": self.update_flops,
            "shares": self._shares(),
            "memory": self._memory(),
            "textbook_memory": self._textbook_memory(),
            "duration": self._duration(),
            "compute_optimal": self._compute_optimal(),
        }

    def _shares(self) -> dict[str, Any]:
        by_context = shares_by_context(self.config)
        return {
            "model": _rounded(flop_shares(self.config)),
            "by_size": {name: _rounded(one) for name, one in shares_by_size().items()},
            "by_context": {str(length): _rounded(one) for length, one in by_context.items()},
        }

    def _memory(self) -> dict[str, Any]:
        memory = self.memory
        return {
            "device": memory.execution.device,
            "precision": memory.execution.precision,
            "weights": memory.weights,
            "gradients": memory.gradients,
            "optimizer_state": memory.optimizer_state,
            "weight_copies": memory.weight_copies,
            "activations_per_sequence": memory.activations_per_sequence,
            "bytes_per_sequence": memory.bytes_per_sequence,
            "memory_bytes": self.memory_bytes,
            "largest_micro_batch": memory.largest_micro_batch(self.memory_bytes),
            "micro_batch": self.micro_batch,
            "peak_bytes": self.peak_bytes,
        }

    def _textbook_memory(self) -> dict[str, Any]:
        textbook = self.textbook
        return {
            "precision": "float32",
            "weights": textbook.weights,
            "gradients": textbook.gradients,
            "optimizer_state": textbook.optimizer_state,
            "activations_per_sequence": textbook.activations_per_sequence,
            "bytes_per_sequence": textbook.bytes_per_sequence,
            "fixed_bytes": textbook.fixed_bytes,
            "formula": textbook.formula(),
            "memory_bytes": self.memory_bytes,
            "largest_batch": textbook.largest_batch(self.memory_bytes),
        }

    def _duration(self) -> dict[str, Any]:
        duration = self.duration
        return {
            "device": duration.device,
            "precision": duration.precision,
            "peak_flops_per_second": round(duration.peak_flops_per_second),
            "mfu": duration.mfu,
            "batch_size": duration.batch_size,
            "num_steps": duration.num_steps,
            "num_tokens": self.num_tokens,
            "total_flops": duration.total_flops,
            "seconds": round(duration.seconds),
            "days": round(duration.days, 2),
            "dollars": None if duration.dollars is None else round(duration.dollars, 2),
            "derivation": duration.derivation(),
        }

    def _compute_optimal(self) -> dict[str, Any]:
        num_parameters = optimal_parameters(self.duration.total_flops)
        return {
            "tokens_per_parameter": round(self.num_tokens / self.num_parameters, 2),
            "tokens_for_this_model": optimal_tokens(self.num_parameters),
            "parameters_for_this_compute": num_parameters,
            "tokens_for_this_compute": optimal_tokens(num_parameters),
            "source": SOURCE,
        }


def make_plan(
    config: ModelConfig,
    accelerator: Accelerator,
    *,
    batch_size: int,
    num_steps: int,
    precision: Literal["auto", "float32", "bfloat16"] = "auto",
    mfu: float = 0.5,
    optimizer: OptimizerName = "adamw",
    micro_batch: int | None = None,
    price: Price | None = None,
) -> Plan:
    """The plan of a run on one device; the price is the table's where none is given."""
    if precision == "auto":
        precision = fastest_precision(accelerator)
    peak = rate_in(accelerator, precision)
    if peak is None:
        raise ConfigError(
            f"{accelerator.name} has no {precision} of its own: plan with --precision float32"
        )
    execution = Execution(device_kind(accelerator), precision)
    memory = training_memory(config, execution, optimizer, accelerator.memory_bytes)
    if micro_batch is None:
        micro_batch = memory.largest_divisor(batch_size, accelerator.memory_bytes)
    duration = estimate_duration(
        config,
        batch_size=batch_size,
        num_steps=num_steps,
        peak_flops_per_second=peak,
        mfu=mfu,
        device=accelerator.name,
        precision=precision,
        price=price or PRICES.get(accelerator.name),
    )
    return Plan(
        config=config,
        batch_size=batch_size,
        micro_batch=micro_batch,
        parameters=count_parameters(config),
        flops_per_layer=layer_flops(config, config.context_length),
        flops=forward_flops(config),
        update_flops=update_flops(config, optimizer),
        memory=memory,
        textbook=textbook_memory(config),
        memory_bytes=accelerator.memory_bytes,
        duration=duration,
    )


def two_line_plan(
    config: ModelConfig,
    batch_size: int,
    num_steps: int,
    *,
    tokens_in_corpus: int | None = None,
    optimizer: OptimizerName = "adamw",
) -> list[str]:
    """Two lines: the parameters and the memory they take; the tokens and operations of the run."""
    num_parameters = sum(count_parameters(config).values())
    state_bytes = training_state_bytes(config, optimizer)
    tokens_per_step = batch_size * config.context_length
    num_tokens = tokens_per_step * num_steps
    flops_per_step = training_flops_per_token(config) * tokens_per_step
    tokens = f"{show_count(num_tokens)} tokens"
    if tokens_in_corpus:
        passes = num_tokens / tokens_in_corpus
        tokens += f" ({passes:.2g} passes over {show_count(tokens_in_corpus)})"
    return [
        f"{show_count(num_parameters)} parameters: {show_bytes(state_bytes)} of memory for "
        f"weights, gradients and optimizer, activations on top",
        f"{num_steps:,} steps of {tokens_per_step:,} tokens: {tokens}, "
        f"{show_flops(flops_per_step)} a step, {show_flops(flops_per_step * num_steps)} in all",
    ]


def memory_line(memory: TrainingMemory, micro_batch: int, batch_size: int) -> str:
    """One line for the log of a run: the peak of a step, and what it is made of."""
    peak = memory.bytes_at(micro_batch, accumulates=micro_batch < batch_size)
    at_once = f"all {batch_size:,} sequences at once"
    if micro_batch < batch_size:
        at_once = f"micro-batches of {micro_batch:,} of {batch_size:,} sequences"
    return (
        f"about {show_bytes(peak)} at the peak of a step with {at_once}: "
        f"{show_bytes(memory.state_bytes)} stand, a sequence adds "
        f"{show_bytes(memory.bytes_per_sequence)}"
    )


def _rounded(shares: dict[str, float]) -> dict[str, float]:
    return {name: round(share, 4) for name, share in shares.items()}
