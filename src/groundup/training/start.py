"""What a run starts from: another run's weights, and custom parts."""

import contextlib
import operator
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch import Tensor

from groundup.checkpoint import Checkpoint, CheckpointFolder, check_shapes, restore_optimizer
from groundup.data.batches.order import Ids
from groundup.distributed.process_group import ONE_PROCESS, ProcessGroup
from groundup.errors import CheckpointError, ConfigError, check_argument_names
from groundup.model import ModelConfig, TransformerLM
from groundup.model.parts import identify, swapped_parts
from groundup.model.transformer import weight_shapes
from groundup.optim.base import Optimizer
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.tokenizer import Tokenizer

# One row per token.
_TABLES = ("token_embedding.weight", "lm_head.weight")
# Settings that may differ between a run and the one it starts from.
_MAY_DIFFER = (
    *("vocab_size", "context_length", "document_separator"),
    *("initialization", "zero_outputs", "dropout"),
)


def settings_from(run: RunFolder) -> dict[str, Any]:
    """What a new run inherits from the run it starts from, by dotted name."""
    model = run.read_config().model
    values: dict[str, Any] = {"start_from": run.path, "data.tokenizer": run.tokenizer_file}
    values |= {f"model.{name}": value for name, value in model.model_dump().items()}
    # Its default depends on vocab_size, which may grow.
    values["model.embedding_scale"] = model.input_scale
    if model.document_separator is not None:
        values["model.document_separator"] = "auto"
    return values


@dataclass(frozen=True)
class Start:
    """The checkpoint that a run starts from, checked against its model and tokenizer."""

    folder: RunFolder
    checkpoint: Checkpoint
    weights: dict[str, torch.Tensor]
    new_ids: tuple[int, ...]
    """Tokens that the checkpoint's tokenizer does not have."""

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        config: ModelConfig,
        tokenizer: Tokenizer,
        ranks: ProcessGroup = ONE_PROCESS,
        *,
        with_optimizer: bool = False,
    ) -> "Start":
        """The newest checkpoint in `path`; `tokenizer` may have more tokens than the run's.

        with_optimizer: to continue the training there, from the checkpoint that validates best.
        """
        folder = RunFolder(path)
        source, known = folder.read_config().model, Tokenizer.load(folder.tokenizer_file)
        theirs, ours = _decisive(source), _decisive(config)
        found = [
            f"model.{name} is {ours[name]}, but {value} there"
            for name, value in theirs.items()
            if ours[name] != value
        ]
        if config.vocab_size < source.vocab_size:
            found.append(f"model.vocab_size is {config.vocab_size}, below {source.vocab_size}")
        ids = known.vocab.keys()
        other = next((id for id in ids if tokenizer.vocab.get(id) != known.vocab[id]), None)
        if other is not None:
            found.append(f"the tokenizer has a different token with id {other}")
        if found:
            raise ConfigError(f"the weights of {path} do not fit this run: {'; '.join(found)}")
        checkpoints = CheckpointFolder(folder.checkpoints, weights_only=not with_optimizer)
        # Only rank 0 hashes it.
        chosen = _find(checkpoints, is_best=with_optimizer) if ranks.is_first else None
        checkpoint = ranks.broadcast(chosen)
        weights = checkpoint.model_state()
        check_shapes(weight_shapes(source), weights)
        return cls(folder, checkpoint, weights, tuple(sorted(tokenizer.vocab.keys() - ids)))

    def describe(self, *, is_tuned: bool) -> dict[str, Any]:
        """For environment.json: the origin of the weights, and for fine-tuning the ids that begin
        and end a text, if recorded."""
        path, checkpoint = str(self.folder.path.absolute()), self.checkpoint
        ids = {"run": path, "step": checkpoint.step, "weights": checkpoint.weights_id}
        found = self.folder.read_environment()
        found = found["imported"] if isinstance(found.get("imported"), dict) else found
        names = ("special_ids", "end_id") if is_tuned else ()
        return {"start_from": ids} | {name: found[name] for name in names if name in found}

    @torch.no_grad()
    def load_into(self, model: TransformerLM) -> None:
        """Copy the weights. Embeddings of new tokens start as the mean of the others; rows without
        a token keep their initial values."""
        own = model.state_dict()
        for name, weight in self.weights.items():
            target = own[name]
            target[: len(weight)].copy_(weight)
            if name in _TABLES and self.new_ids:
                target[list(self.new_ids)] = weight.mean(0).to(target)

    def load_optimizer_into(self, optimizer: Optimizer, config: RunConfig) -> bool:
        """Load the optimizer's state, without EMAs of weights; False if none fits."""
        source = self.folder.read_config()
        ours, theirs = config.optimizer, source.optimizer
        is_alike = (ours.name, ours.normalize_rows) == (theirs.name, theirs.normalize_rows)
        # `open` has checked everything else that the weights depend on.
        is_alike = is_alike and config.model.vocab_size == source.model.vocab_size
        if not is_alike or config.tuning.lora_rank is not None:
            return False
        try:
            stored = self.checkpoint.optimizer_state()
            for state in stored["state"].values():
                state.pop("average", None)
            groups = optimizer.state_dict()["param_groups"]
            restore_optimizer(optimizer, {**stored, "param_groups": groups})
        except CheckpointError:
            return False
        return bool(stored["state"])


def _find(checkpoints: CheckpointFolder, *, is_best: bool) -> Checkpoint:
    if is_best:
        # There may be no checkpoint with a metric.
        with contextlib.suppress(CheckpointError):
            return checkpoints.best()
    return checkpoints.newest()


def _decisive(config: ModelConfig) -> dict[str, Any]:
    """The settings that a model's weights depend on, with computed defaults."""
    return {
        **config.model_dump(exclude={*_MAY_DIFFER, "embedding_scale"}),
        "d_ff": config.feed_forward_dim,
        "num_kv_heads": config.key_value_heads,
        "embedding_scale": config.input_scale,
    }


Loss = Callable[[TransformerLM, Tensor, Tensor], Tensor]
"""(model, inputs, targets) -> mean loss over the targets; ids of shape (rows, seq)."""
MakeOptimizer = Callable[[TransformerLM], torch.optim.Optimizer]
Schedule = Callable[[float], float]
"""(progress at the middle of a step, from 0 to 1) -> fraction of the peak learning rate."""


class Overrides(TypedDict, total=False):
    """Custom parts of a run, instead of those of its settings. A resume needs them again."""

    model: TransformerLM
    """Trained instead of a new one; its layers may be swapped."""
    data: Ids | tuple[Ids, Ids]
    """Training ids, or training and validation ids: arrays, memory maps, or the result of
    `open_shards`."""
    loss: Loss
    """The training loss. Validation losses stay cross-entropies."""
    optimizer: MakeOptimizer
    """Makes any torch optimizer for the model."""
    schedule: Schedule
    """In place of `config.schedule`."""


# Settings that contradict a custom part, or that it does not implement.
_EXCLUDED = {
    "data": ("tuning.chats", "data.mix"),
    "loss": ("tuning.chats", "z_loss", "multi_token_weight"),
    "optimizer": ("optimizer.ema_fraction",),
}


_SIGNATURES = {
    "loss": "of model, inputs and targets that returns the mean loss",
    "optimizer": "of the model, such as lambda model: torch.optim.RAdam(model.parameters(), 1e-3)",
    "schedule": "from the progress, 0 to 1, to the fraction of the peak learning rate",
}


def check_overrides(config: RunConfig, overrides: Overrides) -> None:
    """Raise ConfigError if a custom part is unknown, not a function, or contradicts a setting."""
    if not isinstance(config, RunConfig):
        raise ConfigError("train takes a RunConfig, such as RunConfig(num_steps=100)")
    check_argument_names(overrides, Overrides.__annotations__)
    if not isinstance(overrides.get("model"), TransformerLM | None):
        raise ConfigError("model must be a TransformerLM, whose layers may be swapped")
    for part, signature in _SIGNATURES.items():
        function = overrides.get(part, callable)
        if isinstance(function, type) or not callable(function):
            raise ConfigError(f"{part} must be a function {signature}")
    if "data" in overrides and config.model.document_separator == "auto":
        raise ConfigError("model.document_separator is auto, which needs shards: give the id")
    for part, names in _EXCLUDED.items():
        for name in names:
            if part in overrides and operator.attrgetter(name)(config):
                raise ConfigError(f"a custom {part} cannot be used with {name}: remove one")


def parts_of(overrides: Overrides) -> dict[str, str]:
    """What config.yaml records of custom parts, by name; data are in environment.json."""
    model = overrides.get("model")
    names = ("loss", "optimizer", "schedule")
    found = {name: identify(part) for name, part in overrides.items() if name in names}
    return found if model is None else swapped_parts(model) | found
