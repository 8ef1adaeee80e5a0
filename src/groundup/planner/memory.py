"""Memory of a training step in closed form, and the micro-batch that fits.

peak = weights + gradients + optimizer state + copies of weights
       + micro_batch · activations + one chunk of logits + the gradient of the output layer

Fused attention stores no scores, the loss no logits, and a matmul its input. The estimate is 0.92
to 1.09 of 13 peaks measured on an H200; a `MeasuredStep` corrects it for allocator overhead.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from groundup.errors import ConfigError
from groundup.model.config import ModelConfig
from groundup.nn.limits import UNGATED, logit_chunk_bytes, logit_chunk_rows
from groundup.optim.config import OptimizerName
from groundup.planner.parameters import (
    FLOAT32_BYTES,
    count_matrices,
    count_parameters,
    count_trainable,
)
from groundup.planner.quantities import show_bytes

_MAX_SEQUENCES = 1 << 20
# Larger micro-batches do not make a CPU faster.
_BUSY_TOKENS = 4_096
# Usable fractions of a device's memory; an OOM in one of FSDP's collectives hangs the other ranks.
_CPU_FRACTION, _GPU_FRACTION, _SHARDED_FRACTION = 0.6, 0.9, 0.8
# Smaller peaks cannot be measured reliably against the rest of the process's memory.
_MIN_MEASURED_BYTES = 100_000_000


Strategy = Literal["ddp", "fsdp", "hsdp"]


class Execution(NamedTuple):
    """Device and precision of a step; weights are always float32."""

    device: Literal["cpu", "cuda", "mps"]
    precision: Literal["float32", "bfloat16"]

    @classmethod
    def of(cls, device: str, precision: str) -> "Execution":
        """Create from a run's settings: cpu, mps, cuda or cuda:N, and the precision of matmuls."""
        kind: Any = device.partition(":")[0]
        return cls(kind, "bfloat16" if precision in ("bfloat16", "float8") else "float32")

    @property
    def value_bytes(self) -> int:
        """Size of an activation; on a CPU, bfloat16 is only used in matmuls."""
        return 2 if self.precision == "bfloat16" and self.device != "cpu" else FLOAT32_BYTES


FLOAT32_ON_CPU = Execution("cpu", "float32")


class MeasuredStep(NamedTuple):
    """Peak memory of one real step, as measured by training."""

    micro_batch: int
    peak_bytes: int


@dataclass(frozen=True)
class StepMemory:
    """Memory of a step, in bytes."""

    config: ModelConfig
    execution: Execution
    weights: int
    gradients: int
    optimizer_state: int
    weight_copies: int
    """bfloat16 copies of the blocks' matrices, or copies merged with their adapters."""
    activations_per_sequence: dict[str, int]
    chunk_bytes: int
    """Maximum size of a chunk of logits in the loss."""
    is_exact: bool = False
    """Whether micro-batches are summed in the fixed tree of the exact reduction."""
    num_shards: int = 1
    scale: float = 1.0
    """Ratio of the measured peak to the closed form."""

    @property
    def state_bytes(self) -> int:
        """Memory in use between steps."""
        return self.weights + self.optimizer_state

    @property
    def bytes_per_sequence(self) -> int:
        return sum(self.activations_per_sequence.values())

    @property
    def gathered_bytes(self) -> int:
        """FSDP's unsharded weights, outside the blocks and of two blocks, and one's gradients."""
        parts = count_parameters(self.config)
        outside = parts["token_embedding"] + parts["lm_head"]
        block = (sum(parts.values()) - outside) // max(1, self.config.num_layers)
        return FLOAT32_BYTES * (outside + 3 * block) if self.num_shards > 1 else 0

    def bytes_at(self, micro_batch: int, num_micro_batches: int = 1) -> int:
        """Return the peak memory of a step. The exact reduction keeps one partial sum of gradients
        for each level of its tree."""
        num_sums = math.ceil(math.log2(num_micro_batches)) if self.is_exact else 0
        kept = micro_batch * self.bytes_per_sequence + self.weight_copies + self.gathered_bytes
        head = FLOAT32_BYTES * self.config.vocab_size * self.config.d_model // self.num_shards
        in_loss = max(1, num_sums) * self.gradients + kept + head + self._chunk(micro_batch)
        after_backward = (num_sums + 1) * self.gradients
        return round(self.scale * (self.state_bytes + max(in_loss, after_backward)))

    def shard(self, num_shards: int) -> "StepMemory":
        """Return the memory of one rank if weights, gradients and optimizer state are sharded."""
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

    def corrected(self, measured: MeasuredStep) -> "StepMemory":
        """Scale the estimate to match a measured step."""
        predicted = self.bytes_at(measured.micro_batch)
        if not measured.peak_bytes or predicted < _MIN_MEASURED_BYTES:
            return self
        return replace(self, scale=measured.peak_bytes / predicted)

    def usable_bytes(self, memory_bytes: int) -> int:
        """Return how much of a device's memory an unmeasured step may use."""
        if self.execution.device == "cpu":
            return int(_CPU_FRACTION * memory_bytes)
        return int((_GPU_FRACTION if self.num_shards == 1 else _SHARDED_FRACTION) * memory_bytes)

    def _chunk(self, micro_batch: int) -> int:
        """Bytes of a chunk of logits: three copies for float32 on CUDA (no in-place kernel)."""
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
    """Estimate the memory of a step on one device, whose memory_bytes limit the chunks of logits.

    ema: whether the optimizer keeps an average of the weights.
    exact: the exact reduction; None: only on a CPU.
    """
    parts, trainable_parts = count_parameters(config), count_trainable(config, lora_rank)
    trainable = FLOAT32_BYTES * sum(trainable_parts.values())
    # AdamW keeps two values per parameter, which is also assumed for custom optimizers; SGD none,
    # and Muon one for the matrices of the blocks.
    state = 0 if optimizer == "sgd" else 2 * trainable
    state -= FLOAT32_BYTES * count_matrices(trainable_parts) if optimizer == "muon" else 0
    is_half, has_adapters = execution.precision == "bfloat16", lora_rank is not None
    copied_bytes = (2 if is_half else FLOAT32_BYTES) if is_half or has_adapters else 0
    return StepMemory(
        config=config,
        execution=execution,
        weights=FLOAT32_BYTES * sum(parts.values()) + has_adapters * trainable,
        gradients=trainable,
        optimizer_state=state + ema * trainable,
        weight_copies=0 if checkpointing else count_matrices(parts) * copied_bytes,
        activations_per_sequence=_activations(config, execution, checkpointing=checkpointing),
        chunk_bytes=logit_chunk_bytes(execution.device, memory_bytes),
        is_exact=execution.device == "cpu" if exact is None else exact,
    )


def memory_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of `step_memory` for a run's settings by dotted names."""
    reduction = settings["distributed.reduction"]
    exact = True if settings["deterministic"] else None
    return {
        "ema": settings["optimizer.ema_fraction"] is not None,
        "checkpointing": settings["distributed.activation_checkpointing"],
        "lora_rank": settings["tuning.lora_rank"],
        "exact": exact if reduction == "auto" else reduction == "exact",
    }


def choose_micro_batch(memory: StepMemory, batch_size: int, memory_bytes: int) -> int:
    """Return the largest divisor of the batch size that fits; 0 if none does. On a CPU, at most
    what fits in half of the memory, unless it takes more to keep the CPU busy."""
    most = min(batch_size, _MAX_SEQUENCES)
    divisors = [size for size in range(most, 0, -1) if batch_size % size == 0]

    def fit_into(limit: float) -> list[int]:
        return [size for size in divisors if memory.bytes_at(size, batch_size // size) <= limit]

    fitting = fit_into(memory.usable_bytes(memory_bytes))
    if memory.execution.device != "cpu" or not fitting:
        return fitting[0] if fitting else 0
    busy = (size for size in fitting[::-1] if size * memory.config.context_length >= _BUSY_TOKENS)
    return max([next(busy, fitting[0]), *fit_into(memory_bytes / 2)[:1]])


def check_fits(memory: StepMemory, micro_batch: int, memory_bytes: int) -> int:
    """Return the micro-batch; raises ConfigError if it is 0."""
    if micro_batch:
        return micro_batch
    raise ConfigError(
        f"training takes {show_bytes(memory.bytes_at(1))} for one sequence of "
        f"{memory.config.context_length} tokens, but may use only "
        f"{show_bytes(memory.usable_bytes(memory_bytes))}; use a smaller model or context_length"
    )


def _activations(
    config: ModelConfig, execution: Execution, *, checkpointing: bool
) -> dict[str, int]:
    """Bytes stored per sequence for the backward pass.

    For each token a block stores residuals, norms, queries, keys and values (also after rotation or
    normalization), the attention output and the feed-forward layer's inner values; the final norm
    stores its input, output and gradient.
    """
    d_model, d_key_value = config.d_model, config.key_value_heads * config.d_head
    # torch.compile recomputes the inner values of ungated activations.
    num_inner = 2 if config.feed_forward in UNGATED and execution.device == "cuda" else 3
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


def textbook_memory(config: ModelConfig, memory_bytes: int) -> dict[str, Any]:
    """Training memory by the textbook: float32, AdamW, all intermediates stored, a·batch + b.

    For comparison with other calculations; our own step stores less. Each block stores two norms,
    queries, keys and values, scores, their softmax, the attention output, its projection, and the
    feed-forward layer's matmuls, activation and (if gated) product; then the final norm, the logits
    and their softmax.
    """
    tokens, d_model, num_layers = config.context_length, config.d_model, config.num_layers
    d_key_value = config.key_value_heads * config.d_head
    scores = num_layers * config.num_heads * tokens**2
    num_inner = 2 if config.feed_forward in UNGATED else 4
    values = {
        "norms": (0 if config.norm == "none" else 2) * num_layers * tokens * d_model,
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
    weights = FLOAT32_BYTES * sum(count_parameters(config).values())
    per_sequence, fixed = FLOAT32_BYTES * sum(values.values()), 4 * weights
    return {
        "precision": "float32",
        "weights": weights,
        "gradients": weights,
        "optimizer_state": 2 * weights,
        "activations_per_sequence": {k: FLOAT32_BYTES * count for k, count in values.items()},
        "bytes_per_sequence": per_sequence,
        "fixed_bytes": fixed,
        "formula": f"{per_sequence:,} x batch + {fixed:,} bytes",
        "memory_bytes": memory_bytes,
        "largest_batch": max(0, (memory_bytes - fixed) // per_sequence),
    }


def choose_strategy(
    memory: StepMemory,
    num_sequences: int,
    memory_bytes: int,
    *,
    num_gpus: int,
    gpus_per_machine: int,
    micro_batch: int | None = None,
) -> Strategy:
    """Resolve `auto`: ddp if it fits, hsdp if the state fits on one of several machines, else fsdp.

    num_sequences, memory_bytes: per GPU.
    """

    def fits(num_shards: int) -> bool:
        part = memory.shard(num_shards)
        return find_micro_batch(part, num_sequences, memory_bytes, micro_batch) > 0

    if fits(1):
        return "ddp"
    return "hsdp" if num_gpus > gpus_per_machine and fits(gpus_per_machine) else "fsdp"


def find_micro_batch(
    memory: StepMemory, num_sequences: int, memory_bytes: int, micro_batch: int | None
) -> int:
    """Return the largest micro-batch that fits, or the given one; 0 if that does not fit."""
    if micro_batch is None:
        return choose_micro_batch(memory, num_sequences, memory_bytes)
    size = math.gcd(micro_batch, num_sequences)
    peak = memory.bytes_at(size, num_sequences // size)
    return size if peak <= memory.usable_bytes(memory_bytes) else 0
