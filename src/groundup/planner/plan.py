"""A run on one page before it starts: everything the planner knows, as one value."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from groundup.errors import ConfigError
from groundup.model.config import ModelConfig
from groundup.planner.accelerators import Accelerator
from groundup.planner.activations import Execution
from groundup.planner.duration import ASSUMED_MFU, Duration, estimate_duration
from groundup.planner.flops import (
    ORTHOGONALIZATION_STEPS,
    OptimizerName,
    forward_flops,
    layer_flops,
    step_flops,
    update_flops,
)
from groundup.planner.hardware import Precision, device_kind, fastest_precision, rate_in
from groundup.planner.memory import TrainingMemory, training_memory
from groundup.planner.optimal import SOURCE, optimal_parameters, optimal_tokens
from groundup.planner.parameters import count_parameters
from groundup.planner.prices import Price, find_price
from groundup.planner.shares import flop_shares, shares_by_context, shares_by_size
from groundup.planner.textbook_memory import TextbookMemory, textbook_memory

_FLOAT32_BYTES = 4


@dataclass(frozen=True)
class Plan:
    """What a run costs: parameters, operations, memory, time, money."""

    config: ModelConfig
    batch_size: int
    micro_batch: int
    """Sequences at once, as given, or the greatest divisor of the batch that fits; 0 for none."""
    parameters: dict[str, int]
    flops_per_layer: dict[str, int]
    flops: dict[str, int]
    update_flops: int
    memory: TrainingMemory
    textbook: TextbookMemory
    memory_bytes: int
    """What the device has."""
    duration: Duration
    tokens_in_corpus: int | None = None

    @property
    def num_parameters(self) -> int:
        return sum(self.parameters.values())

    @property
    def num_tokens(self) -> int:
        """Of the whole run."""
        return self.batch_size * self.config.context_length * self.duration.num_steps

    @property
    def num_epochs(self) -> float | None:
        """How often the run goes through its corpus, where that is known."""
        return None if self.tokens_in_corpus is None else self.num_tokens / self.tokens_in_corpus

    @property
    def enough(self) -> Duration:
        """The run that gives this model the tokens it is worth (see `optimal`)."""
        tokens_per_step = self.batch_size * self.config.context_length
        num_steps = -(-optimal_tokens(self.num_parameters) // tokens_per_step)
        return replace(self.duration, num_steps=num_steps, limit_seconds=None)

    def within(self, seconds: float) -> "Plan":
        """The same run for as many steps as fit into a time."""
        return replace(self, duration=self.duration.within(seconds))

    @property
    def fits(self) -> bool:
        """Whether a step of ours fits into the memory of the device."""
        accumulates = self.micro_batch < self.batch_size
        return self.micro_batch > 0 and self.memory.fits(
            self.micro_batch, self.memory_bytes, accumulates=accumulates
        )

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
            "workspaces": memory.workspaces,
            "activations_per_sequence": memory.activations_per_sequence,
            "bytes_per_sequence": memory.bytes_per_sequence,
            "memory_bytes": self.memory_bytes,
            "largest_micro_batch": memory.largest_micro_batch(self.memory_bytes),
            "micro_batch": self.micro_batch,
            "peak_bytes": self.peak_bytes,
            "process_bytes": memory.process_bytes,
            "fits": self.fits,
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
            "num_epochs": None if self.num_epochs is None else round(self.num_epochs, 3),
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
            "steps_for_this_model": self.enough.num_steps,
            "seconds_for_this_model": round(self.enough.seconds),
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
    precision: Literal["auto", "float32", "tf32", "bfloat16"] = "auto",
    mfu: float = ASSUMED_MFU,
    optimizer: OptimizerName = "adamw",
    orthogonalization_steps: int = ORTHOGONALIZATION_STEPS,
    micro_batch: int | None = None,
    price: Price | None = None,
    tokens_in_corpus: int | None = None,
    memory_factor: float = 1.0,
) -> Plan:
    """The plan of a run on one device; the price is the table's where none is given, and
    `memory_factor` what a probe measured of a step's memory over what is predicted. Micro-batches
    are the ones that `groundup train` takes, which knows of no probe."""
    chosen = _settle_precision(precision, accelerator)
    peak = rate_in(accelerator, chosen)
    if peak is None:
        raise ConfigError(
            f"{accelerator.name} has no {chosen} of its own: plan with --precision float32"
        )
    execution = Execution(
        device_kind(accelerator), "bfloat16" if chosen == "bfloat16" else "float32"
    )
    memory = training_memory(config, execution, optimizer, accelerator.memory_bytes)
    if micro_batch is None:
        micro_batch = memory.largest_divisor(batch_size, accelerator.memory_bytes)
    memory = replace(memory, factor=memory_factor)
    duration = estimate_duration(
        config,
        batch_size=batch_size,
        num_steps=num_steps,
        peak_flops_per_second=peak,
        mfu=mfu,
        device=accelerator.name,
        precision=chosen,
        price=price or find_price(accelerator.name),
        source=accelerator.source,
    )
    return Plan(
        config=config,
        batch_size=batch_size,
        micro_batch=micro_batch,
        parameters=count_parameters(config),
        flops_per_layer=layer_flops(config, config.context_length),
        flops=forward_flops(config),
        update_flops=update_flops(config, optimizer, orthogonalization_steps),
        memory=memory,
        textbook=textbook_memory(config),
        memory_bytes=accelerator.memory_bytes,
        duration=duration,
        tokens_in_corpus=tokens_in_corpus,
    )


def _settle_precision(
    precision: Literal["auto", "float32", "tf32", "bfloat16"], accelerator: Accelerator
) -> Precision:
    """TF32 is how float32 is multiplied where the hardware has it, and plain float32 elsewhere."""
    if precision == "auto":
        return fastest_precision(accelerator)
    if precision == "tf32" and accelerator.tf32_flops_per_second is None:
        return "float32"
    return precision


def _rounded(shares: dict[str, float]) -> dict[str, float]:
    return {name: round(share, 4) for name, share in shares.items()}
