"""A run before it starts: everything the planner knows, as one value, and in lines for its log."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from groundup.errors import ConfigError
from groundup.model.config import ModelConfig
from groundup.planner.duration import ASSUMED_MFU, Duration
from groundup.planner.flops import (
    OPTIMAL_SOURCE,
    OptimizerName,
    flop_fractions,
    forward_flops,
    fractions_by_context,
    fractions_by_size,
    layer_flops,
    optimal_parameters,
    optimal_tokens,
    step_flops,
    update_flops,
)
from groundup.planner.hardware import (
    Accelerator,
    Precision,
    Price,
    device_kind,
    fastest_precision,
    find_price,
    rate_in,
)
from groundup.planner.memory import (
    Execution,
    MeasuredStep,
    StepMemory,
    TextbookMemory,
    choose_micro_batch,
    step_memory,
    textbook_memory,
)
from groundup.planner.parameters import FLOAT32_BYTES, count_learned, count_parameters
from groundup.planner.quantities import show_bytes, show_count, show_flops
from groundup.runtime import count_of


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
    memory: StepMemory
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
        """The run that gives this model the tokens it is worth (see `optimal_tokens`)."""
        tokens_per_step = self.batch_size * self.config.context_length
        num_steps = -(-optimal_tokens(self.num_parameters) // tokens_per_step)
        return replace(self.duration, num_steps=num_steps, limit_seconds=None)

    def within(self, seconds: float) -> "Plan":
        """The same run for as many steps as fit into a time."""
        return replace(self, duration=self.duration.within(seconds))

    @property
    def peak_bytes(self) -> int | None:
        """The most memory that a step of ours takes; None where not even one sequence fits."""
        if self.micro_batch == 0:
            return None
        return self.memory.bytes_at(self.micro_batch, self.batch_size // self.micro_batch)

    @property
    def fits(self) -> bool:
        """Whether a step of ours fits into the memory of the device."""
        return self.peak_bytes is not None and self.peak_bytes <= self.memory_bytes

    def to_json(self) -> dict[str, Any]:
        """All results; counts, bytes and operations are integers."""
        memory, textbook, duration = self.memory, self.textbook, self.duration
        by_context = fractions_by_context(self.config)
        best = optimal_parameters(duration.total_flops)
        return {
            "model": self.config.model_dump(mode="json"),
            "parameters": {**self.parameters, "total": self.num_parameters},
            "weight_bytes": FLOAT32_BYTES * self.num_parameters,
            "forward_flops": {
                "num_tokens": self.config.context_length,
                "per_layer": self.flops_per_layer,
                **self.flops,
                "total": sum(self.flops.values()),
            },
            "flops_per_step": step_flops(self.config, self.batch_size),
            "update_flops": self.update_flops,
            "shares": {
                "model": _rounded(flop_fractions(self.config)),
                "by_size": {name: _rounded(one) for name, one in fractions_by_size().items()},
                "by_context": {str(length): _rounded(one) for length, one in by_context.items()},
            },
            "memory": {
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
                "fits": self.fits,
            },
            "textbook_memory": {
                "precision": "float32",
                **asdict(textbook),
                "bytes_per_sequence": textbook.bytes_per_sequence,
                "fixed_bytes": textbook.fixed_bytes,
                "formula": textbook.formula(),
                "memory_bytes": self.memory_bytes,
                "largest_batch": textbook.largest_batch(self.memory_bytes),
            },
            "duration": {
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
            },
            "compute_optimal": {
                "tokens_per_parameter": round(self.num_tokens / self.num_parameters, 2),
                "tokens_for_this_model": optimal_tokens(self.num_parameters),
                "steps_for_this_model": self.enough.num_steps,
                "seconds_for_this_model": round(self.enough.seconds),
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
    price: Price | None = None,
    tokens_in_corpus: int | None = None,
    measured: MeasuredStep | None = None,
    **options: Any,
) -> Plan:
    """The plan of a run on one device.

    precision: of matmuls; auto is the device's best.
    micro_batch: sequences in memory at once; what `groundup train` takes if None.
    price: of an hour; the table's if None.
    measured: a real step on the device, whose peak corrects the closed form.
    options: keyword arguments of `step_memory`.
    """
    chosen = _resolve_precision(precision, accelerator)
    peak = rate_in(accelerator, chosen)
    if peak is None:
        raise ConfigError(
            f"{accelerator.name} has no {chosen} of its own: plan with --precision float32"
        )
    execution = Execution(
        device_kind(accelerator), "bfloat16" if chosen == "bfloat16" else "float32"
    )
    memory = step_memory(config, execution, optimizer, accelerator.memory_bytes, **options)
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
        update_flops=update_flops(config, optimizer),
        memory=memory,
        textbook=textbook_memory(config),
        memory_bytes=accelerator.memory_bytes,
        duration=duration,
        tokens_in_corpus=tokens_in_corpus,
    )


def _resolve_precision(
    precision: Literal["auto", "float32", "tf32", "bfloat16"], accelerator: Accelerator
) -> Precision:
    """TF32 is how float32 is multiplied where the hardware has it, and plain float32 elsewhere."""
    if precision == "auto":
        return fastest_precision(accelerator)
    if precision == "tf32" and accelerator.tf32_flops_per_second is None:
        return "float32"
    return precision


def _rounded(fractions: dict[str, float]) -> dict[str, float]:
    return {name: round(fraction, 4) for name, fraction in fractions.items()}


def two_line_plan(
    config: ModelConfig,
    batch_size: int,
    num_steps: int,
    *,
    tokens_in_corpus: int | None = None,
    optimizer: OptimizerName = "adamw",
    ema: bool = False,
    lora_rank: int | None = None,
) -> list[str]:
    """Two lines: the parameters and the memory they take; the tokens and operations of the run."""
    parameters = f"{show_count(sum(count_parameters(config).values()))} parameters"
    if lora_rank is not None:
        num_learned = sum(count_learned(config, lora_rank).values())
        parameters += f" and {show_count(num_learned)} in adapters, which alone learn"
    memory = step_memory(config, optimizer=optimizer, ema=ema, lora_rank=lora_rank)
    tokens_per_step = batch_size * config.context_length
    num_tokens = tokens_per_step * num_steps
    flops_per_step = step_flops(config, batch_size)
    tokens = f"{show_count(num_tokens)} tokens"
    if tokens_in_corpus:
        epochs = num_tokens / tokens_in_corpus
        tokens += f" ({epochs:.2g} epochs of {show_count(tokens_in_corpus)})"
    return [
        f"{parameters}: {show_bytes(memory.state_bytes + memory.gradients)} of memory for "
        f"weights, gradients and optimizer, activations on top",
        f"{count_of(num_steps, 'step')} of {tokens_per_step:,} tokens: {tokens}, "
        f"{show_flops(flops_per_step)} a step, {show_flops(flops_per_step * num_steps)} in all",
    ]
