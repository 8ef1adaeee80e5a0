"""The state of a run between two steps, and how it is saved and restored.

Together with the settings and the data it decides all later steps.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from groundup.checkpoint import (
    Checkpoint,
    capture_random_state,
    restore_model,
    restore_optimizer,
    restore_random_state,
)
from groundup.distributed.process_group import ONE_PROCESS, ProcessGroup
from groundup.distributed.reduction import ExactReduction, FastReduction, Reduction
from groundup.errors import CheckpointError, ConfigError
from groundup.model import TransformerLM
from groundup.nn.adapters import adapted_state, add_adapters, with_torch_names
from groundup.optim.base import ForeignOptimizer, Optimizer
from groundup.optim.build import build_optimizer
from groundup.optim.muon import Muon
from groundup.planner import check_model_memory
from groundup.runtime import memory_bytes, set_seed
from groundup.tokenizer import Tokenizer
from groundup.training.machine import compile_model
from groundup.training.preference import Preference
from groundup.training.resolve import ResolvedRun
from groundup.training.start import MakeOptimizer, Start

if TYPE_CHECKING:
    from groundup.distributed.sharding import LocalParameters

_NUMBERS = ("loss", "validation_loss", "bits_per_byte", "wall_seconds")


@dataclass
class TrainingState:
    """The model, its optimizer and the counters of a run after `step` steps."""

    model: TransformerLM
    optimizer: Optimizer
    tokens_per_step: int
    reduction: Reduction = field(default_factory=FastReduction)
    """Sums gradients over micro-batches and ranks."""
    local: "LocalParameters | None" = None
    """With sharded weights: this rank's rows."""
    step: int = 0
    tokens: int = 0
    num_skipped: int = 0
    """Steps whose loss or gradients were not finite."""
    num_skipped_in_row: int = 0
    """The latest of them."""
    loss: float | None = None
    """Of the last good step."""
    validation_loss: float | None = None
    bits_per_byte: float | None = None
    wall_seconds: float = 0.0
    clock: dict[str, Any] = field(default_factory=dict)
    """A timed run's state of the clock."""
    preference: Preference | None = None
    random_state: dict[str, Any] | None = None
    """After the last good step, if steps use it. None: the current one."""

    @property
    def last_good_step(self) -> int:
        """The latest step that changed the weights, which a checkpoint saves."""
        return self.step - self.num_skipped_in_row

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Use the EMA weights, if there are any, for evaluations, samples and checkpoints."""
        self.optimizer.exchange_averages()
        try:
            yield
        finally:
            self.optimizer.exchange_averages()

    def count_step(self, loss: float, is_skipped: bool) -> None:
        self.step += 1
        self.tokens += self.tokens_per_step
        if is_skipped:
            self.num_skipped += 1
            self.num_skipped_in_row += 1
        else:
            self.num_skipped_in_row = 0
            self.loss = loss

    def counters(self) -> dict[str, Any]:
        """The JSON part of a checkpoint at `last_good_step`, without skipped steps after it."""
        return {
            "tokens": self.tokens - self.num_skipped_in_row * self.tokens_per_step,
            "num_skipped": self.num_skipped - self.num_skipped_in_row,
            **{name: getattr(self, name) for name in _NUMBERS},
            **({"clock": self.clock} if self.clock else {}),
            "random": self.random_state or capture_random_state(self.model.device),
            **({"reference": self.preference.reference.tolist()} if self.preference else {}),
        }

    def restore(self, checkpoint: Checkpoint) -> None:
        """Load a checkpoint."""
        groups = self.optimizer.param_groups
        options = [{k: v for k, v in group.items() if k != "params"} for group in groups]
        if self.local is None:
            restore_model(self.model, with_torch_names(checkpoint.adapted_state()))
            optimizer_state = checkpoint.optimizer_state()
        else:
            from groundup.checkpoint.sharded import load_into

            allocate = self.local.allocator_for(self.optimizer)
            group = self.reduction.ranks.host_group
            optimizer_state = load_into(checkpoint, adapted_state(self.model), allocate, group)
        restore_optimizer(self.optimizer, optimizer_state)
        # Learning rate and weight decay come from the settings, which may have changed.
        for group, own in zip(self.optimizer.param_groups, options, strict=True):
            group.update(own)
        self.optimizer.exchange_averages()
        if self.optimizer.average_decay is None:
            for state in self.optimizer.state.values():
                state.pop("average", None)
        counters = checkpoint.state
        self.step = checkpoint.step
        try:
            for name in ("tokens", "num_skipped", *_NUMBERS):
                setattr(self, name, counters[name])
            self.clock = dict(counters.get("clock") or {})
            restore_random_state(counters["random"])
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise CheckpointError(
                f"{checkpoint.path} does not contain the state of a run ({error!r}): it cannot be "
                f"resumed"
            ) from error


def build_state(
    run: ResolvedRun,
    tokenizer: Tokenizer | None = None,
    start: Start | None = None,
    model: TransformerLM | None = None,
    ranks: ProcessGroup = ONE_PROCESS,
    make_optimizer: MakeOptimizer | None = None,
) -> TrainingState:
    """A model on the run's device, given or new, and its optimizer.

    tokenizer: with LoRA, the embeddings of its special tokens are trained too.
    start: the initial weights. Default: from the seed.
    """
    config, device = run.config, torch.device(run.config.device)
    check_model_memory(config.model, memory_bytes())
    set_seed(config.seed)
    # Initialized on the CPU, so that a seed gives the same weights on any device.
    if model is None:
        model = TransformerLM.from_config(config.model, device="cpu")
    if start is not None:
        start.load_into(model)
    if config.tuning.lora_rank is not None:
        # Special tokens, such as the end of a turn, must be learned.
        special = () if tokenizer is None else sorted(tokenizer.special_tokens.values())
        tables = [model.token_embedding, model.lm_head]
        model.requires_grad_(False)
        add_adapters(model.blocks, config.tuning.lora_rank, tables, special)
    if config.distributed.activation_checkpointing:
        from groundup.distributed.sharding import checkpoint_activations

        checkpoint_activations(model)
    # A sharded model is moved block by block.
    if run.strategy == "ddp":
        model = model.to(device)
    model.use_float8(config.precision == "float8")
    compile_model(model, config)
    length = 1.0 if config.num_steps is None else config.num_steps
    local: LocalParameters | None = None
    if run.strategy == "ddp":
        reduction: Reduction = ExactReduction(ranks) if run.is_exact else FastReduction(ranks)
    else:
        from groundup.distributed.sharding import shard

        reduction = sharded = shard(model, ranks, run.strategy, device)
        local = sharded.parameters
    if make_optimizer is not None:
        optimizer: Optimizer = ForeignOptimizer(make_optimizer(model))
    else:
        learning = model if local is None else local
        optimizer = build_optimizer(learning, config.optimizer, length)
    if isinstance(optimizer, ForeignOptimizer) and local is not None:
        raise ConfigError(
            f"distributed.strategy {run.strategy} is for optimizers of groundup.optim"
        )
    if isinstance(optimizer, Muon):
        optimizer.matrices = reduction.matrices()
    return TrainingState(model, optimizer, config.tokens_per_step, reduction, local)
