"""The memory of a training step, as ours takes it: what is fixed, what a batch adds, and the peak.

A step is fullest at one of a few moments, each of them a·micro_batch + b: while the loss works
through its chunks of logits, when it returns its gradients, in a block's backward pass, and at the
update, when activations are gone and every gradient is there.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from groundup.errors import ConfigError
from groundup.model.config import ModelConfig
from groundup.nn.limits import logit_chunk_bytes, logit_chunk_rows
from groundup.planner.activations import (
    FLOAT32_ON_CPU,
    Execution,
    backward_temporaries,
    kept_weight_copies,
    layer_activations,
    output_activations,
)
from groundup.planner.flops import OptimizerName
from groundup.planner.optimizer_memory import optimizer_state_bytes, update_temporaries
from groundup.planner.parameters import FLOAT32_BYTES, count_learned, count_parameters
from groundup.planner.process import process_bytes
from groundup.runtime import allocates_by_mimalloc, is_arm_linux, is_onednn_slow

# Of a GPU's memory the driver, the libraries and blocks of the wrong size take the rest.
_USABLE_FRACTION = 0.92
# More tokens at once make a CPU no faster.
_BUSY_TOKENS = 4_096
_LARGEST_MICRO_BATCH = 1 << 20

# cuBLAS takes a workspace for each thread and stream that multiplies: forward, backward, and the
# recorded step; of 32 MiB each on an H200, where runs of 13 of 15 shapes took that much and a
# little more beyond their tensors (2026-11). Older GPUs have smaller ones.
_CUDA_WORKSPACES = 3 * (32 << 20)


@dataclass(frozen=True)
class _Holes:
    """What a process on a CPU grows by beyond its tensors, in parts of what it is made by.

    Freed memory is kept, and the holes between blocks of different life are never all used. Most
    come of what comes and goes in the passes and at the update; parts of the model that make blocks
    of other sizes add to them. Where a heap is one, blocks of the size of the output matrix and the
    embedding find no room where anything small lies.
    """

    passes: float
    parts: Mapping[str, float]
    update: float
    state: float
    output_matrix: float
    embedding: float


_PARTS = {"qk_norm": 0.1, "head_gates": 0.03, "extra_values": 0.03}
# This meets the whole process of `groundup train`, evaluations and checkpoints included, to 7% over
# 39 shapes; models of gigabytes take up to a tenth less, and where the vocabulary is nearly all of
# a model, no two runs grow alike, and it may be 16% (Linux, glibc, 2026-11). Interpreter and
# libraries come on top.
_GLIBC = _Holes(0.25, _PARTS, 0.23, 0.0, output_matrix=2.2, embedding=0.8)
# mimalloc rounds blocks up, into huge pages (14 shapes, to 7%; deep ones under
# muon take 9% more; Neoverse N1, torch 2.13, 2026-11).
_MIMALLOC = _Holes(
    0.34,
    {name: part / 2 for name, part in _PARTS.items()},
    0.28,
    0.09,
    output_matrix=0.0,
    embedding=0.0,
)


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes by kind; what depends on the batch is given for one sequence."""

    config: ModelConfig
    execution: Execution
    weights: int
    gradients: int
    optimizer_state: int
    weight_copies: int
    """Weights a second time, packed or in lower precision, from forward to backward."""
    update_temporaries: int
    """What the optimizer needs besides its state, for the time of an update."""
    activations_per_sequence: dict[str, int]
    chunk_bytes: int
    """Logits that the loss holds at once."""
    recompute: bool = False
    """Blocks keep their input alone, and compute the rest again in the backward pass."""
    adds_in_tree: bool = False
    """Micro-batches are added in the fixed tree of the exact reduction, not one after another."""
    is_adapted: bool = False
    """Low-rank adapters alone learn, and each weight is read as a sum with its own."""
    is_masked: bool = False
    """Rows hold several sequences that do not see each other."""
    in_float8: bool = False
    """Matmuls are in float8, and so are the gradients of a chunk's logits besides."""
    is_compiled_whole: bool = False
    """The model is compiled as one: all gradients of a micro-batch are there before any is added to
    those of the ones before."""
    num_shards: int = 1
    """GPUs that hold the state between them; weights, gradients and the optimizer's are a part."""
    factor: float = 1.0
    """The peak of a step as measured, in parts of the one that follows from the rest."""

    @property
    def state_bytes(self) -> int:
        """What is there between two steps."""
        return self.weights + self.optimizer_state

    @property
    def workspaces(self) -> int:
        """What the matmul library keeps for itself among the tensors."""
        return _CUDA_WORKSPACES if self.execution.device == "cuda" else 0

    @property
    def gathered_bytes(self) -> int:
        """Of shards, the whole weights outside of blocks, of the block at work and of the next."""
        if self.num_shards == 1:
            return 0
        outside, block = self._unit_bytes()
        return outside + min(2, self.config.num_layers) * block

    @property
    def bytes_per_sequence(self) -> int:
        """What one more sequence in a micro-batch keeps for the backward pass."""
        return sum(self.activations_per_sequence.values())

    def bytes_at(self, micro_batch: int, num_micro_batches: int = 1) -> int:
        """The peak of a step with `micro_batch` sequences at once; where there are several
        micro-batches, the gradients of those before stay."""
        moments = self.moments(micro_batch, num_micro_batches)
        tensors = self.state_bytes + self.workspaces + max(moments.values())
        if self.execution.device == "cpu":
            tensors += self._holes(moments)
        return tensors if self.factor == 1 else round(self.factor * tensors)

    @property
    def process_bytes(self) -> int:
        """What the interpreter and its libraries hold besides, where tensors lie in the memory of
        the process."""
        if self.execution.device != "cpu":
            return 0
        return process_bytes(self.execution.precision)

    def moments(self, micro_batch: int, num_micro_batches: int = 1) -> dict[str, int]:
        """Bytes of tensors above the fixed ones where a step may be fullest.

        micro_batch, num_micro_batches: as in `bytes_at`.
        """
        config, execution = self.config, self.execution
        tokens = micro_batch * config.context_length
        kept = micro_batch * self.bytes_per_sequence + self.weight_copies
        head = FLOAT32_BYTES * config.vocab_size * config.d_model
        earlier = self._num_waiting(num_micro_batches) * self.gradients
        kept_by_blocks = kept - micro_batch * self.activations_per_sequence["output"]
        by_part = layer_activations(config, execution, is_masked=self.is_masked)
        one_layer = tokens * sum(by_part.values()) if config.num_layers else 0
        if self.recompute:
            kept_by_blocks += one_layer + kept_weight_copies(
                config, execution, is_adapted=self.is_adapted
            )
        in_block = tokens * backward_temporaries(config, execution)
        inner = tokens * by_part["feed_forward"] if config.num_layers else 0
        # The gradient of the output matrix; beside adapters also the matrix with its learned rows,
        # and of both the rows alone stay.
        tables, staying = (2 * head, 0) if self.is_adapted else (head, head)
        moments = {
            "loss": earlier + kept + tables + self._head_copies() + self._chunk(tokens),
            "loss_backward": earlier + kept + 2 * head,
            "first_block_backward": earlier + kept_by_blocks + staying + in_block,
            # What the feed-forward layer kept has been let go by then.
            "attention_backward": earlier + kept_by_blocks - inner + staying,
            "last_block_backward": self.gradients
            + (earlier if self.adds_in_tree or self.is_compiled_whole else 0)
            + one_layer
            + in_block,
            "update": self.gradients + self.update_temporaries,
        }
        return moments if self.num_shards == 1 else self._with_gathered(moments, head)

    def largest_micro_batch(self, memory_bytes: int, num_micro_batches: int = 1) -> int:
        """The most sequences at once that fit into `memory_bytes`; 0 where not even one does.

        num_micro_batches: as in `bytes_at`.
        """
        low, high = 0, _LARGEST_MICRO_BATCH
        while low < high:
            middle = (low + high + 1) // 2
            if self.fits(middle, memory_bytes, num_micro_batches):
                low = middle
            else:
                high = middle - 1
        return low

    def largest_divisor(self, batch_size: int, memory_bytes: int) -> int:
        """The most sequences at once that fit into `memory_bytes` and cut `batch_size` evenly; 0
        where not even one does."""
        if self.fits(batch_size, memory_bytes):
            return batch_size
        most = min(batch_size // 2, self.largest_micro_batch(memory_bytes, 2))
        divisors = (size for size in range(most, 0, -1) if batch_size % size == 0)
        fitting = (size for size in divisors if self.fits(size, memory_bytes, batch_size // size))
        return next(fitting, 0)

    def fits(self, micro_batch: int, memory_bytes: int, num_micro_batches: int = 1) -> bool:
        """Whether a step leaves of `memory_bytes` what else a device or a process has to hold.

        micro_batch, num_micro_batches: as in `bytes_at`.
        """
        return self.bytes_at(micro_batch, num_micro_batches) <= self._usable(memory_bytes)

    def _num_waiting(self, num_micro_batches: int) -> int:
        """Sums of gradients that wait while others are computed: in the tree one of every level."""
        if self.adds_in_tree:
            return math.ceil(math.log2(num_micro_batches))
        return 1 if num_micro_batches > 1 else 0

    def _usable(self, memory_bytes: int) -> int:
        if self.execution.device == "cuda":
            return int(memory_bytes * _USABLE_FRACTION)
        return max(0, memory_bytes - self.process_bytes)

    def _holes(self, moments: dict[str, int]) -> int:
        config, holes = self.config, _MIMALLOC if allocates_by_mimalloc() else _GLIBC
        in_passes = max(count for name, count in moments.items() if name != "update")
        head = FLOAT32_BYTES * config.vocab_size * config.d_model
        per_head = holes.output_matrix + (0 if config.tie_embeddings else holes.embedding)
        per_pass = holes.passes + sum(
            part
            for name, part in holes.parts.items()
            if getattr(config, name) not in (False, "none")
        )
        in_steps = per_pass * in_passes + holes.update * moments["update"]
        return round(in_steps + holes.state * self.state_bytes + per_head * head)

    def _with_gathered(self, moments: dict[str, int], head: int) -> dict[str, int]:
        """The same with what FSDP2 needs besides: in a block's backward pass its weights and those
        of the next, its gradients, and what they are summed from and to. On a CPU that is up to 12%
        more than a step of one micro-batch took (4 shapes, 2 and 4 ranks, torch 2.13, 2026-11)."""
        outside, block = self._unit_bytes()
        in_backward = outside + 4 * block + 2 * block // self.num_shards
        added = {
            "loss": self.gathered_bytes,
            "loss_backward": self.gathered_bytes,
            "first_block_backward": in_backward,
            "attention_backward": in_backward,
            "last_block_backward": in_backward,
            "update": 0,
        }
        found = {name: count + added[name] for name, count in moments.items()}
        found["outside_sums"] = self.gradients + 2 * outside + head
        return found

    def _unit_bytes(self) -> tuple[int, int]:
        """The weights outside of blocks, and of one block."""
        parts = count_parameters(self.config)
        outside = parts["token_embedding"] + parts["lm_head"]
        block = (sum(parts.values()) - outside) // max(1, self.config.num_layers)
        return FLOAT32_BYTES * outside, FLOAT32_BYTES * block

    def _head_copies(self) -> int:
        """The output matrix as the matmul of the logits wants it, where that is not as it lies."""
        is_cast = self.execution.precision != "float32"
        is_copied = self.execution.device == "cpu" and _copies_transposed()
        size = self.config.vocab_size * self.config.d_model * self.execution.value_bytes
        return (is_cast + is_copied) * size

    def _chunk(self, tokens: int) -> int:
        """The logits of one chunk, of which all are of one size, and copies where no kernel works
        in place."""
        row = self.config.vocab_size * self.execution.value_bytes
        rows = logit_chunk_rows(tokens, row, self.chunk_bytes)
        copies = self._wide_copies() * FLOAT32_BYTES + self.in_float8
        # In float8 the layer is there in both orders, and its inputs are.
        size = (2 * self.config.vocab_size + tokens) * self.config.d_model
        return rows * (row + copies * self.config.vocab_size) + self.in_float8 * size

    def _wide_copies(self) -> int:
        """How often passes over logits hold them in float32 besides, where no kernel of ours works
        in place."""
        if self.execution == ("cuda", "bfloat16"):
            return 0
        if self.execution.device != "cpu":
            return 2
        return int(self.execution.precision == "bfloat16")


@dataclass(frozen=True)
class StepKind:
    """What a step keeps or spares beside what model and optimizer say."""

    averages: bool = False
    """Whether the optimizer keeps an average of the weights."""

    recompute: bool = False
    adds_in_tree: bool | None = None
    """Both as in `TrainingMemory`; None is True on a CPU alone."""

    lora_rank: int | None = None
    """Of low-rank adapters, if they alone learn."""

    is_masked: bool = False
    in_float8: bool = False
    is_compiled_whole: bool = False
    """All three as in `TrainingMemory`."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "StepKind":
        """By the settings of a run, flat; those that an older run does not have are off."""
        reduction = settings.get("distributed.reduction", "auto")
        rank = settings.get("tuning.lora_rank")
        adds_in_tree = True if settings.get("deterministic") else None
        return cls(
            averages=settings.get("optimizer.average_over") is not None,
            recompute=bool(settings.get("distributed.recompute")),
            adds_in_tree=adds_in_tree if reduction == "auto" else reduction == "exact",
            lora_rank=rank if isinstance(rank, int) else None,
            is_masked=bool(settings.get("tuning.chats") or settings.get("data.mask_documents")),
            in_float8=settings.get("precision") == "float8",
            is_compiled_whole=settings.get("compile") == "model",
        )


USUAL_STEP = StepKind()
"""Of a run that says nothing about it."""


def training_memory(
    config: ModelConfig,
    execution: Execution = FLOAT32_ON_CPU,
    optimizer: OptimizerName = "adamw",
    memory_bytes: int | None = None,
    step: StepKind = USUAL_STEP,
) -> TrainingMemory:
    """The memory of `groundup train` on one device.

    config: the model.
    execution: the kind of device and the precision.
    optimizer: its state counts.
    memory_bytes: what the device has, if that is known; the chunks of the loss depend on it.
    step: what else counts.
    """
    lora_rank, recompute, is_masked = step.lora_rank, step.recompute, step.is_masked
    adds_in_tree = step.adds_in_tree
    if adds_in_tree is None:
        adds_in_tree = execution.device == "cpu"
    learned = FLOAT32_BYTES * sum(count_learned(config, lora_rank).values())
    is_adapted = lora_rank is not None
    weights = FLOAT32_BYTES * sum(count_parameters(config).values())
    if is_adapted:
        weights += learned
    state = optimizer_state_bytes(config, optimizer, lora_rank) + (learned if step.averages else 0)
    copies = kept_weight_copies(config, execution, is_adapted=is_adapted)
    num_tokens, num_layers = config.context_length, config.num_layers
    kept = layer_activations(config, execution, is_masked=is_masked)
    if recompute:
        # Of a block its input alone.
        kept = {"residual": config.d_model * execution.value_bytes}
    activations = {name: num_layers * num_tokens * count for name, count in kept.items()}
    activations["output"] = num_tokens * output_activations(config, execution)
    return TrainingMemory(
        config=config,
        execution=execution,
        weights=weights,
        gradients=learned,
        optimizer_state=state,
        weight_copies=0 if recompute else num_layers * copies,
        update_temporaries=update_temporaries(
            config, execution.device, optimizer, is_exact=adds_in_tree, lora_rank=lora_rank
        ),
        activations_per_sequence=activations,
        chunk_bytes=logit_chunk_bytes(execution.device, memory_bytes),
        recompute=recompute,
        adds_in_tree=adds_in_tree,
        is_adapted=is_adapted,
        is_masked=is_masked,
        in_float8=step.in_float8,
        is_compiled_whole=step.is_compiled_whole,
    )


def pick_micro_batch(memory: TrainingMemory, batch_size: int, memory_bytes: int) -> int:
    """`largest_divisor` of `memory` for `batch_size` and `memory_bytes`, or an error that says what
    is too large. On a CPU no more than fit into half of the memory or keep it busy: large
    micro-batches were measured to take up to 1.6 times what is planned there."""
    size = memory.largest_divisor(batch_size, memory_bytes)
    if size == 0:
        raise ConfigError(
            f"training takes {memory.bytes_at(1):,} bytes for one sequence of "
            f"{memory.config.context_length} tokens, and of {memory_bytes:,} it may use "
            f"{memory._usable(memory_bytes):,}: use a smaller model or context_length, or a device "
            f"with more memory"
        )
    if memory.execution.device != "cpu":
        return size
    divisors = (count for count in range(1, size) if batch_size % count == 0)
    busy = (count for count in divisors if count * memory.config.context_length >= _BUSY_TOKENS)
    fitting = (count for count in busy if memory.fits(count, memory_bytes, batch_size // count))
    return max(memory.largest_divisor(batch_size, memory_bytes // 2), next(fitting, size))


@cache
def _copies_transposed() -> bool:
    """On Arm under Linux torch gives x Wᵀ to oneDNN, which holds a copy of Wᵀ meanwhile (torch
    2.13); a run does without oneDNN where it is slow."""
    return is_arm_linux() and not is_onednn_slow()
