"""Memory of a training step in closed form, and the micro-batch that fits.

peak = weights + gradients + optimizer state + copies of weights
       + micro_batch · activations + one chunk of logits + the gradient of the output layer

Counted from the layers: fused attention keeps no scores, the loss keeps no logits, a matmul keeps
its input. On 18 peaks measured on an H200 the form is within 0.97 to 1.17 of them. What it cannot
know (allocators, libraries) comes from a `MeasuredStep` where there is a device to measure on.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from groundup.errors import ConfigError
from groundup.model.config import ModelConfig
from groundup.nn.limits import logit_chunk_bytes, logit_chunk_rows
from groundup.planner.flops import OptimizerName
from groundup.planner.parameters import (
    FLOAT32_BYTES,
    block_matrices,
    count_learned,
    count_matrices,
    count_parameters,
)
from groundup.planner.quantities import show_bytes

DeviceKind = Literal["cpu", "cuda", "mps"]

_MOST_SEQUENCES = 1 << 20
# More tokens at once make a CPU no faster.
_BUSY_TOKENS = 4_096
# Of a device's memory; an OOM inside a collective of FSDP hangs the other ranks.
_CPU_FRACTION, _GPU_FRACTION, _SHARDED_FRACTION = 0.6, 0.9, 0.8
# A smaller peak is lost among what a process holds anyway.
_LEAST_MEASURED_BYTES = 100_000_000


class Execution(NamedTuple):
    """Where and in which precision a step computes; weights are float32 always."""

    device: DeviceKind
    precision: Literal["float32", "bfloat16"]

    @classmethod
    def of(cls, device: str, precision: str) -> "Execution":
        """From the settings of a run: cpu, mps, cuda or cuda:N, and the precision of matmuls."""
        kinds: dict[str, DeviceKind] = {"cuda": "cuda", "mps": "mps"}
        kind = kinds.get(device.partition(":")[0], "cpu")
        return cls(kind, "bfloat16" if precision in ("bfloat16", "float8") else "float32")

    @property
    def value_bytes(self) -> int:
        """Of an activation; on a CPU bfloat16 is for matmuls alone."""
        return 2 if self.precision == "bfloat16" and self.device != "cpu" else FLOAT32_BYTES


FLOAT32_ON_CPU = Execution("cpu", "float32")


class MeasuredStep(NamedTuple):
    """One real step of a micro-batch, as training measures it."""

    micro_batch: int
    seconds: float
    peak_bytes: int
    optimizer_state_bytes: int = 0
    """0: as the formula says."""


@dataclass(frozen=True)
class StepMemory:
    """Bytes by kind; activations are those of one sequence."""

    config: ModelConfig
    execution: Execution
    weights: int
    gradients: int
    optimizer_state: int
    weight_copies: int
    """Matrices of the blocks in bfloat16, or added to their adapters, from forward to backward."""
    activations_per_sequence: dict[str, int]
    chunk_bytes: int
    """Logits that the loss holds at once."""
    is_exact: bool = False
    """Micro-batches are summed in the fixed tree of the exact reduction."""
    num_shards: int = 1
    scale: float = 1.0
    """Measured peak over the closed form."""

    @property
    def state_bytes(self) -> int:
        """What stays between two steps."""
        return self.weights + self.optimizer_state

    @property
    def bytes_per_sequence(self) -> int:
        return sum(self.activations_per_sequence.values())

    @property
    def gathered_bytes(self) -> int:
        """With FSDP: whole weights outside of blocks, and of two blocks with one's gradients."""
        if self.num_shards == 1:
            return 0
        parts = count_parameters(self.config)
        outside = parts["token_embedding"] + parts["lm_head"]
        block = (sum(parts.values()) - outside) // max(1, self.config.num_layers)
        return FLOAT32_BYTES * (outside + 3 * block)

    def bytes_at(self, micro_batch: int, num_micro_batches: int = 1) -> int:
        """The peak of a step with `micro_batch` sequences at once.

        In the tree of the exact reduction one sum of gradients of every level waits while the next
        micro-batch is computed.
        """
        waiting = math.ceil(math.log2(num_micro_batches)) if self.is_exact else 0
        kept = micro_batch * self.bytes_per_sequence + self.weight_copies + self.gathered_bytes
        head = FLOAT32_BYTES * self.config.vocab_size * self.config.d_model // self.num_shards
        in_loss = max(1, waiting) * self.gradients + kept + head + self._chunk(micro_batch)
        after_backward = (waiting + 1) * self.gradients
        return round(self.scale * (self.state_bytes + max(in_loss, after_backward)))

    def shard(self, num_shards: int) -> "StepMemory":
        """The memory of one of the ranks that hold weights, gradients and state between them."""
        if num_shards == 1:
            return self
        return replace(
            self,
            weights=-(-self.weights // num_shards),
            gradients=-(-self.gradients // num_shards),
            optimizer_state=-(-self.optimizer_state // num_shards),
            num_shards=num_shards,
            is_exact=False,
        )

    def corrected(self, measured: MeasuredStep | None) -> "StepMemory":
        """The same form, scaled to agree with a measured step."""
        if measured is None:
            return self
        state = measured.optimizer_state_bytes or self.optimizer_state
        memory = replace(self, optimizer_state=state, scale=1.0)
        predicted = memory.bytes_at(measured.micro_batch)
        if not measured.peak_bytes or predicted < _LEAST_MEASURED_BYTES:
            return memory
        return replace(memory, scale=measured.peak_bytes / predicted)

    def largest_micro_batch(self, memory_bytes: float) -> int:
        """The most sequences at once that fit; 0 where not even one does."""
        low, high = 0, _MOST_SEQUENCES
        while low < high:
            middle = (low + high + 1) // 2
            if self.bytes_at(middle) <= memory_bytes:
                low = middle
            else:
                high = middle - 1
        return low

    def usable_bytes(self, memory_bytes: int) -> int:
        """What a step may take of a device's memory without having been measured there."""
        if self.execution.device == "cpu":
            return int(_CPU_FRACTION * memory_bytes)
        return int((_GPU_FRACTION if self.num_shards == 1 else _SHARDED_FRACTION) * memory_bytes)

    def _chunk(self, micro_batch: int) -> int:
        """Logits of one chunk; without a kernel that works in place, in float32 on CUDA, thrice."""
        row = self.config.vocab_size * self.execution.value_bytes
        rows = logit_chunk_rows(micro_batch * self.config.context_length, row, self.chunk_bytes)
        return rows * row * (3 if self.execution == ("cuda", "float32") else 1)


def step_memory(
    config: ModelConfig,
    execution: Execution = FLOAT32_ON_CPU,
    optimizer: OptimizerName = "adamw",
    memory_bytes: int | None = None,
    *,
    ema: bool = False,
    checkpointing: bool = False,
    lora_rank: int | None = None,
    exact: bool | None = None,
) -> StepMemory:
    """The memory of a step on one device.

    memory_bytes: of the device; chunks of logits are smaller on a small one.
    ema: whether the optimizer keeps an average of the weights.
    checkpointing: blocks keep their input alone and are computed again in the backward pass.
    exact: the exact reduction; None: on a CPU.
    """
    learned = FLOAT32_BYTES * sum(count_learned(config, lora_rank).values())
    weights = FLOAT32_BYTES * sum(count_parameters(config).values())
    if lora_rank is not None:
        weights += learned
    copied_bytes = 2 if execution.precision == "bfloat16" else FLOAT32_BYTES
    has_copies = (execution.precision == "bfloat16" or lora_rank is not None) and not checkpointing
    matrices = sum(rows * columns for rows, columns in block_matrices(config))
    return StepMemory(
        config=config,
        execution=execution,
        weights=weights,
        gradients=learned,
        optimizer_state=optimizer_state_bytes(config, optimizer, lora_rank) + ema * learned,
        weight_copies=config.num_layers * matrices * copied_bytes * has_copies,
        activations_per_sequence=_activations(config, execution, checkpointing=checkpointing),
        chunk_bytes=logit_chunk_bytes(execution.device, memory_bytes),
        is_exact=execution.device == "cpu" if exact is None else exact,
    )


def memory_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of `step_memory` from the flat settings of a run; old runs lack some."""
    reduction = settings.get("distributed.reduction", "auto")
    rank = settings.get("tuning.lora_rank")
    exact = True if settings.get("deterministic") else None
    return {
        "ema": settings.get("optimizer.average_over") is not None,
        "checkpointing": bool(settings.get("distributed.recompute")),
        "lora_rank": rank if isinstance(rank, int) else None,
        "exact": exact if reduction == "auto" else reduction == "exact",
    }


def choose_micro_batch(memory: StepMemory, batch_size: int, memory_bytes: int) -> int:
    """Sequences at once: the largest divisor of the batch that fits; 0 where none does.

    On a CPU no more than fit into half of the memory, or than keep it busy.
    """
    most = min(batch_size, _MOST_SEQUENCES)
    divisors = [size for size in range(most, 0, -1) if batch_size % size == 0]

    def fit_into(limit: float) -> list[int]:
        return [size for size in divisors if memory.bytes_at(size, batch_size // size) <= limit]

    fitting = fit_into(memory.usable_bytes(memory_bytes))
    if memory.execution.device != "cpu" or not fitting:
        return fitting[0] if fitting else 0
    busy = (size for size in fitting[::-1] if size * memory.config.context_length >= _BUSY_TOKENS)
    return max([next(busy, fitting[0]), *fit_into(memory_bytes / 2)[:1]])


def check_fits(memory: StepMemory, micro_batch: int, memory_bytes: int) -> int:
    """The micro-batch, or an error that says what is too large where it is 0."""
    if micro_batch:
        return micro_batch
    raise ConfigError(
        f"training takes {memory.bytes_at(1):,} bytes for one sequence of "
        f"{memory.config.context_length} tokens, and of {memory_bytes:,} it may use "
        f"{memory.usable_bytes(memory_bytes):,}: use a smaller model or context_length, or a "
        f"device with more memory"
    )


def optimizer_state_bytes(
    config: ModelConfig, optimizer: OptimizerName, lora_rank: int | None = None
) -> int:
    """AdamW keeps two values a parameter, SGD none; Muon keeps one for the matrices of the blocks
    and leaves the rest to AdamW."""
    parts = count_learned(config, lora_rank)
    num_learned = sum(parts.values())
    num_values = {
        "adamw": 2 * num_learned,
        "sgd": 0,
        "muon": 2 * num_learned - count_matrices(parts),
    }
    return FLOAT32_BYTES * num_values[optimizer]


def memory_line(memory: StepMemory, micro_batch: int, batch_size: int) -> str:
    """One line for the log of a run: the peak of a step, and what it is made of."""
    peak = memory.bytes_at(micro_batch, batch_size // micro_batch)
    at_once = f"all {batch_size:,} sequences at once" if batch_size > 1 else "one sequence"
    if micro_batch < batch_size:
        at_once = f"micro-batches of {micro_batch:,} of {batch_size:,} sequences"
    return (
        f"about {show_bytes(peak)} at the peak of a step with {at_once}: weights, gradients and "
        f"optimizer {show_bytes(memory.state_bytes + memory.gradients)}, activations "
        f"{show_bytes(memory.bytes_per_sequence)} per sequence"
    )


def _activations(
    config: ModelConfig, execution: Execution, *, checkpointing: bool
) -> dict[str, int]:
    """Bytes that one sequence keeps for the backward pass.

    Of each token a block keeps its residuals and norms (2 + 2 vectors), queries, keys and values,
    those that were rotated or normalized, the mixed values, and the matrices' inner values. Outside
    of blocks: input and output of the last norm, and the gradient of that.
    """
    d_model, d_key_value = config.d_model, config.key_value_heads * config.d_head
    # A compiler makes the inner values of plain activations again.
    num_inner = 2 if config.feed_forward != "swiglu" and execution.device == "cuda" else 3
    num_prepared = (config.positions == "rope") + config.qk_norm
    layer = {
        "residual": 2 * d_model,
        "norms": 0 if config.norm == "none" else 2 * d_model,
        "query_key_value": d_model + 2 * d_key_value,
        "rotated": num_prepared * (d_model + d_key_value),
        "attention_mixing": d_model,
        "feed_forward": num_inner * config.feed_forward_dim,
    }
    kept = {name: config.num_layers * count for name, count in layer.items()}
    if checkpointing:
        kept = {"residual": config.num_layers * d_model, "one_block": sum(layer.values())}
    kept["output"] = 3 * d_model
    per_value = config.context_length * execution.value_bytes
    return {name: per_value * count for name, count in kept.items()}


@dataclass(frozen=True)
class TextbookMemory:
    """Training memory by the textbook: float32, every intermediate kept, a·batch + b. Our own step
    keeps less; this is the result that other calculations of the same kind arrive at."""

    weights: int
    gradients: int
    optimizer_state: int
    activations_per_sequence: dict[str, int]

    @property
    def fixed_bytes(self) -> int:
        """b, whatever the batch."""
        return self.weights + self.gradients + self.optimizer_state

    @property
    def bytes_per_sequence(self) -> int:
        """a, for each sequence of a batch."""
        return sum(self.activations_per_sequence.values())

    def bytes_at(self, batch_size: int) -> int:
        return self.bytes_per_sequence * batch_size + self.fixed_bytes

    def largest_batch(self, memory_bytes: int) -> int:
        """The most sequences that fit; 0 where not even one does."""
        return max(0, (memory_bytes - self.fixed_bytes) // self.bytes_per_sequence)

    def formula(self) -> str:
        return f"{self.bytes_per_sequence:,} x batch + {self.fixed_bytes:,} bytes"


def textbook_memory(config: ModelConfig) -> TextbookMemory:
    """AdamW keeps two averages; activations as in `textbook_activations`."""
    weights = FLOAT32_BYTES * sum(count_parameters(config).values())
    values = textbook_activations(config)
    kept = {name: FLOAT32_BYTES * count for name, count in values.items()}
    return TextbookMemory(weights, weights, 2 * weights, kept)


def textbook_activations(config: ModelConfig) -> dict[str, int]:
    """Values of one sequence. Of each block: two norms, queries, keys and values, scores, their
    softmax, the mixed values, the output projection, and the feed-forward layer's matmuls,
    activation and (gated) their product; then the last norm, the logits, and their softmax."""
    tokens, d_model, num_layers = config.context_length, config.d_model, config.num_layers
    d_key_value = config.key_value_heads * config.d_head
    norms_per_block = 0 if config.norm == "none" else 2
    num_inner = 4 if config.feed_forward == "swiglu" else 2
    scores = num_layers * config.num_heads * tokens**2
    return {
        "norms": norms_per_block * num_layers * tokens * d_model,
        "query_key_value": num_layers * tokens * (d_model + 2 * d_key_value),
        "attention_scores": scores,
        "attention_softmax": scores,
        "attention_mixing": num_layers * tokens * d_model,
        "attention_output": num_layers * tokens * d_model,
        "feed_forward_inner": num_layers * tokens * num_inner * config.feed_forward_dim,
        "feed_forward_output": num_layers * tokens * d_model,
        "final_norm": tokens * d_model if config.norm == "pre" else 0,
        "logits": tokens * config.vocab_size,
        "cross_entropy": tokens * config.vocab_size,
    }
