"""The only place where settings change: the given settings become those of this machine.

Every "auto" is decided here, once, before anything is opened; the run folder stores the result.
Resolving a resolved run changes nothing.
"""

import datetime
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from groundup.config import flatten
from groundup.data.batches.order import batch_samples
from groundup.data.shards import find_index
from groundup.distributed.process_group import ONE_PROCESS, ProcessGroup
from groundup.errors import ConfigError
from groundup.model import ModelConfig, TransformerLM
from groundup.nn import float8
from groundup.planner import Execution, StepMemory, count_parameters, step_memory
from groundup.planner.memory import (
    Strategy,
    check_fits,
    choose_micro_batch,
    choose_strategy,
    memory_options,
)
from groundup.planner.quantities import show_count
from groundup.runs.config import RunConfig
from groundup.runtime import count_of, slow_bfloat16_reason
from groundup.training.machine import Machine
from groundup.training.start import MakeOptimizer

# Fine-tuning gains more from many small steps than from a few large ones, and few conversations
# want many epochs (measured: docs/guides/tuning.md).
_TUNING_STEPS = 200
_TUNING_BATCH_SIZE = 8
_TUNING_EPOCHS, _MIN_TUNING_EPOCHS = 60, 3

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ResolvedRun:
    """A run with every setting decided."""

    config: RunConfig
    strategy: Strategy
    """Whether the weights are replicated (ddp) or sharded."""
    is_exact: bool
    """Whether gradients are summed in an order that does not depend on the number of ranks."""

    def halved(self) -> "ResolvedRun | None":
        """The run with micro-batches of at most half the size; None if they cannot shrink."""
        for size in range(self.config.sequences_in_memory // 2, 0, -1):
            if self.config.batch_size % size == 0:
                return replace(self, config=_changed(self.config, micro_batch_size=size))
        return None

    def describe(self, num_ranks: int) -> str:
        """The run in one line."""
        config = self.config
        parts = [f"{show_count(sum(count_parameters(config.model).values()))} parameters"]
        parts += [] if config.num_steps is None else [f"{config.num_steps:,} steps"]
        parts += [] if config.minutes is None else [f"{config.minutes:g} minutes"]
        parts += [f"{config.tokens_per_step:,} tokens a step"]
        parts += [f"{config.precision} on {config.device}", f"compile {config.compile}"]
        way = "exact" if self.is_exact else "fast"
        ranks = [f"{num_ranks} ranks: {self.strategy}, reduction {way}"]
        return ", ".join(parts + ranks * (num_ranks > 1))


def resolve(
    config: RunConfig,
    machine: Machine,
    ranks: ProcessGroup = ONE_PROCESS,
    *,
    previous: RunConfig | None = None,
    epoch_rows: int | None = None,
    make_optimizer: MakeOptimizer | None = None,
) -> ResolvedRun:
    """Decide device, precision, compilation, length, strategy and micro-batch size of a run; raise
    ConfigError if it cannot be trained here.

    previous: the settings of the run to resume. epoch_rows: batch rows per epoch, once the data are
    known; `epochs` needs them. make_optimizer: a custom optimizer.
    """
    config = _with_embedding_scale(resolve_device(config, machine), previous)
    config = _with_separator(config)
    if previous is not None and config.num_steps is None and config.epochs == previous.epochs:
        config = _changed(config, num_steps=previous.num_steps)
    if epoch_rows is not None and config.tuning.chats and not config.continue_training:
        config = _changed(config, epochs=config.epochs or _tuning_epochs(epoch_rows))
    if config.num_steps is None and config.epochs is not None and epoch_rows is not None:
        num_rows = config.epochs * epoch_rows
        if config.tuning.chats and "batch_size" not in config.model_fields_set:
            rows_a_step = int(num_rows / _TUNING_STEPS)
            config = _changed(config, batch_size=max(1, min(_TUNING_BATCH_SIZE, rows_a_step)))
        config = _changed(config, num_steps=max(1, round(num_rows / config.batch_size)))
    strategy = _find_strategy(config, machine, ranks)
    _check(config, machine, ranks, strategy)
    wants_exact = config.deterministic or config.device == "cpu"
    exact = ("exact", "auto") if wants_exact else ("exact",)
    is_exact = strategy == "ddp" and config.distributed.reduction in exact
    memory = planned_memory(config, machine.memory_bytes)
    if make_optimizer is not None:
        memory = replace(memory, optimizer_state=_measure_state(config.model, make_optimizer))
    size = _find_micro_batch(config, memory, machine, ranks, previous, strategy, is_exact)
    return ResolvedRun(_changed(config, micro_batch_size=size), strategy, is_exact)


def _tuning_epochs(num_rows: int) -> float:
    """The number of epochs for this many packed rows."""
    epochs = max(_TUNING_EPOCHS / num_rows**0.4, _TUNING_STEPS / num_rows, _MIN_TUNING_EPOCHS)
    return float(round(epochs, 1))


def name_run(
    config: RunConfig, model: TransformerLM | None = None, parts: Mapping[str, str] | None = None
) -> RunConfig:
    """The run with a name (default: the time), a custom model's settings, and a record of custom
    parts."""
    name = config.name or datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    model_config = config.model if model is None else model.config
    return _changed(config, name=name, model=model_config, parts=dict(parts or {}))


def resolve_device(config: RunConfig, machine: Machine | None = None) -> RunConfig:
    """The same settings with device, precision and compilation resolved."""
    machine = machine or Machine.detect(config.device)
    precision, mode = config.precision, config.compile
    if precision == "bfloat16" and machine.device == "cpu" and (reason := slow_bfloat16_reason()):
        raise ConfigError(f"precision is bfloat16, but {reason}: use --precision float32")
    if precision == "auto":
        precision = "bfloat16" if machine.has_bfloat16 else "float32"
    if mode == "auto":
        is_cuda = machine.device.startswith("cuda")
        mode = "blocks" if is_cuda and machine.has_triton else "off"
        if is_cuda and not machine.has_triton:
            _log.warning("compile is off: torch.compile needs triton, which is not installed")
    return _changed(config, device=machine.device, precision=precision, compile=mode)


def with_vocabulary(config: RunConfig) -> RunConfig:
    """The run with the vocabulary size of its shards, unless its settings give one. Unreadable
    shards are ignored here: training reports them."""
    index = find_index(config.data.shards)
    if index is None or "vocab_size" in config.model.model_fields_set:
        return config
    model = config.model.model_copy(update={"vocab_size": index.vocab_size})
    return _changed(config, model=model)


def _with_embedding_scale(config: RunConfig, previous: RunConfig | None) -> RunConfig:
    """Store the embedding scale of tied embeddings, which otherwise depends on the initialization;
    a resumed run keeps its own."""
    model = config.model
    if model.embedding_scale is not None or not model.tie_embeddings:
        return config
    scale = model.input_scale if previous is None else previous.model.embedding_scale
    return _changed(config, model=model.model_copy(update={"embedding_scale": scale}))


def _with_separator(config: RunConfig) -> RunConfig:
    """Resolve the document separator: the id that ends documents in the shards."""
    is_known = config.model.document_separator != "auto"
    index = None if is_known else find_index(config.data.shards)
    if index is None:
        return config
    model = config.model.model_copy(update={"document_separator": index.end.id})
    return _changed(config, model=model)


def planned_memory(config: RunConfig, memory_bytes: int) -> StepMemory:
    """The planner's estimate of a step's memory."""
    execution = Execution.of(config.device, config.precision)
    options = memory_options(dict(flatten(config.model_dump())))
    return step_memory(config.model, execution, config.optimizer.name, memory_bytes, **options)


def _check(config: RunConfig, machine: Machine, ranks: ProcessGroup, strategy: Strategy) -> None:
    """Raise ConfigError for settings that exclude each other."""
    model, schedule, is_float8 = config.model, config.schedule, config.precision == "float8"
    counts_steps = max(schedule.warmup_steps, schedule.decay_steps or 0) >= 1
    is_divided, multiple = strategy != "ddp", float8.MULTIPLE
    is_exact, why_not = config.distributed.reduction == "exact", machine.why_no_float8
    is_odd = bool(model.d_model % multiple or model.feed_forward_dim % multiple)
    uses_order = model.dropout and (ranks.size > 1 or config.distributed.activation_checkpointing)
    masks_chats = model.document_separator is not None and bool(config.tuning.chats)
    refused = {
        "tuning.chats needs no document masks: set model.document_separator to None": masks_chats,
        "model.dropout needs one process and no distributed.activation_checkpointing": uses_order,
        "minutes needs schedule.warmup_steps and decay_steps below 1, as fractions of the run": (
            config.minutes is not None and counts_steps
        ),
        f"distributed.strategy {strategy} shards the weights among processes, but there is one: "
        f"start with torchrun, or set the strategy to auto": is_divided and not ranks.is_open,
        f"distributed.strategy {strategy} cannot sum gradients exactly: use "
        f"--distributed.reduction fast, or --distributed.strategy ddp": is_divided and is_exact,
        f"precision float8 needs model.d_model and model.d_ff that are multiples of {multiple}, "
        f"and a strategy other than {strategy}": is_float8 and (is_odd or is_divided),
        f"precision is float8, but {why_not}: use --precision bfloat16": is_float8 and why_not,
    }
    for reason, is_so in refused.items():
        if is_so:
            raise ConfigError(reason)


def _find_strategy(config: RunConfig, machine: Machine, ranks: ProcessGroup) -> Strategy:
    wanted, reduction = config.distributed.strategy, config.distributed.reduction
    if wanted != "auto":
        return wanted
    if ranks.size == 1 or reduction == "exact":
        return "ddp"
    return choose_strategy(
        planned_memory(config, machine.memory_bytes),
        len(batch_samples(0, config.batch_size, ranks.rank, ranks.size)),
        _rank_memory(machine, ranks),
        num_gpus=ranks.size,
        gpus_per_machine=ranks.local_size,
        micro_batch=config.micro_batch,
    )


def _measure_state(config: ModelConfig, make_optimizer: MakeOptimizer) -> int:
    """Bytes of a custom optimizer's state, extrapolated from a step of a tiny model."""
    few = min(64, config.vocab_size)
    values = {"num_layers": min(1, config.num_layers), "vocab_size": few}
    model = TransformerLM.from_config(config.with_(**values, document_separator=None))
    parameters = [one for one in model.parameters() if one.requires_grad]
    for one in parameters:
        one.grad = torch.zeros_like(one)
    optimizer = make_optimizer(model)
    optimizer.step()
    kept = sum(
        value.nbytes
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )
    whole = sum(count_parameters(config).values())
    return round(kept / sum(one.numel() for one in parameters) * whole)


def _find_micro_batch(
    config: RunConfig,
    memory: StepMemory,
    machine: Machine,
    ranks: ProcessGroup,
    previous: RunConfig | None,
    strategy: Strategy,
    is_exact: bool,
) -> int | None:
    """Sequences in memory at once: as given, as in the resumed run if the ranks allow it, or as
    many as fit. None: all of a rank's sequences."""
    num_rows = len(batch_samples(0, config.batch_size, ranks.rank, ranks.size))
    size = config.micro_batch_size
    is_same_batch = previous is not None and previous.batch_size == config.batch_size
    if previous is not None and is_same_batch and size in ("auto", previous.micro_batch_size):
        takes_all_rows = previous.micro_batch is None and not is_exact
        fits = num_rows % previous.sequences_in_memory == 0 or takes_all_rows
        size = previous.micro_batch_size if fits else "auto"
    if size == "auto":
        shards = {"ddp": 1, "fsdp": ranks.size, "hsdp": ranks.local_size}[strategy]
        num_bytes = _rank_memory(machine, ranks)
        part = memory.shard(shards)
        size = check_fits(part, choose_micro_batch(part, num_rows, num_bytes), num_bytes)
        size = None if size == config.batch_size else size
    taken = config.batch_size if size is None and is_exact else size
    if taken is not None and num_rows % taken:
        raise ConfigError(
            f"batch_size {config.batch_size} in micro-batches of {taken} cannot be divided among "
            f"{count_of(ranks.size, 'rank')}: use --micro-batch-size {num_rows}, or a divisor of it"
        )
    return size


def _rank_memory(machine: Machine, ranks: ProcessGroup) -> int:
    """Memory per rank; on CPUs the ranks of a machine share it."""
    return machine.memory_bytes // (ranks.local_size if machine.device == "cpu" else 1)


def _changed(config: RunConfig, **values: Any) -> RunConfig:
    return config.model_copy(update=values)
