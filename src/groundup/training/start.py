"""What a run begins with: the weights of another run, or a program's own model, ids and loss; and
the environment that decides it besides its settings, in which a resume finds what has changed."""

import datetime
import operator
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypedDict

import numpy
import torch
from torch import Tensor

from groundup import __version__
from groundup.checkpoint import Checkpoint, CheckpointFolder, check_shapes, restore_optimizer
from groundup.config import flatten
from groundup.data.batches.order import Ids
from groundup.data.shards import DataIds
from groundup.distributed.process_group import ONE_PROCESS, ProcessGroup
from groundup.errors import CheckpointError, ConfigError
from groundup.model import ModelConfig, TransformerLM
from groundup.model.parts import identify, swapped_parts
from groundup.model.transformer import weight_shapes
from groundup.optim.base import Optimizer
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runtime import num_cores
from groundup.text_files import path_text
from groundup.tokenizer import Tokenizer
from groundup.training.machine import device_name, find_peak

# With a row for each token.
_TABLES = ("token_embedding.weight", "lm_head.weight")
# Settings that may differ between a run and the one it starts from.
_MAY_DIFFER = (
    *("vocab_size", "context_length", "document_separator"),
    *("initialization", "zero_outputs", "dropout"),
)


def settings_from(run: RunFolder) -> dict[str, Any]:
    """What a new run takes over from the one it begins with, by dotted name."""
    model = run.read_config().model
    values: dict[str, Any] = {"start_from": run.path, "data.tokenizer": run.tokenizer_file}
    values |= {f"model.{name}": value for name, value in model.model_dump().items()}
    # The rule for it depends on vocab_size, which may grow.
    values["model.embedding_scale"] = model.input_scale
    if model.document_separator is not None:
        values["model.document_separator"] = "auto"
    return values


@dataclass(frozen=True)
class Start:
    """The checkpoint that a run begins from, checked against the run's model and tokenizer."""

    folder: RunFolder
    checkpoint: Checkpoint
    weights: dict[str, torch.Tensor]
    new_ids: tuple[int, ...]
    """The tokens that its tokenizer does not have."""

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
        """The newest checkpoint of the run in `path`, for a run with this model and tokenizer,
        which may have more tokens."""
        folder = RunFolder(path)
        source, known = folder.read_config().model, Tokenizer.load(folder.tokenizer_file)
        theirs, ours = _decisive(source), _decisive(config)
        found = [
            f"model.{name} is {ours[name]} and there {value}"
            for name, value in theirs.items()
            if ours[name] != value
        ]
        if config.vocab_size < source.vocab_size:
            found.append(f"model.vocab_size is {config.vocab_size}, below {source.vocab_size}")
        ids = known.vocab.keys()
        other = next((id for id in ids if tokenizer.vocab.get(id) != known.vocab[id]), None)
        if other is not None:
            found.append(f"the tokenizer has another token with the id {other}")
        if found:
            raise ConfigError(f"the weights of {path} do not fit this run: {'; '.join(found)}")
        checkpoints = CheckpointFolder(folder.checkpoints, weights_only=not with_optimizer)
        if not ranks.broadcast(bool(checkpoints.steps())):
            raise CheckpointError(f"{path} has no checkpoint yet: train until one is written")
        # To hash all of it is one rank's work.
        checkpoint = ranks.broadcast(checkpoints.newest() if ranks.is_first else None)
        weights = checkpoint.model_state()
        check_shapes(weight_shapes(source), weights)
        return cls(folder, checkpoint, weights, tuple(sorted(tokenizer.vocab.keys() - ids)))

    def describe(self, *, is_tuned: bool) -> dict[str, Any]:
        """For environment.json: which weights these are; to tune them also the ids that begin and
        end its texts, where it says so."""
        path, checkpoint = str(self.folder.path.absolute()), self.checkpoint
        ids = {"run": path, "step": checkpoint.step, "weights": checkpoint.weights_id}
        found = self.folder.read_environment()
        found = found["imported"] if isinstance(found.get("imported"), dict) else found
        names = ("special_ids", "end_id") if is_tuned else ()
        return {"start_from": ids} | {name: found[name] for name in names if name in found}

    @torch.no_grad()
    def load_into(self, model: TransformerLM) -> None:
        """Copy the weights. New tokens begin as the mean of the others: one that nobody knows yet
        is an average token. Rows of ids that no token has stay as they are."""
        own = model.state_dict()
        for name, weight in self.weights.items():
            target = own[name]
            target[: len(weight)].copy_(weight)
            if name in _TABLES and self.new_ids:
                target[list(self.new_ids)] = weight.mean(0).to(target)

    def load_optimizer_into(self, optimizer: Optimizer, config: RunConfig) -> bool:
        """Take over the optimizer's state, but for averages of weights; False where there is none
        that fits."""
        source = self.folder.read_config()
        ours, theirs = config.optimizer, source.optimizer
        is_alike = (ours.name, ours.normalize_rows) == (theirs.name, theirs.normalize_rows)
        # Nothing else that weights depend on may differ.
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


def _decisive(config: ModelConfig) -> dict[str, Any]:
    """The settings of a model that its weights depend on, defaults by rule filled in."""
    return {
        **config.model_dump(exclude={*_MAY_DIFFER, "embedding_scale"}),
        "d_ff": config.feed_forward_dim,
        "num_kv_heads": config.key_value_heads,
        "embedding_scale": config.input_scale,
    }


Loss = Callable[[TransformerLM, Tensor, Tensor], Tensor]
"""Of a model, inputs and targets, both (rows, seq): the mean over the targets."""
MakeOptimizer = Callable[[TransformerLM], torch.optim.Optimizer]
Schedule = Callable[[float], float]
"""Of the progress of the run at the middle of a step, between 0 and 1: the fraction of the maximum
learning rate."""


class Overrides(TypedDict, total=False):
    """Parts of a run that take the place of what its settings say. A resume needs them again."""

    model: TransformerLM
    """Learns instead of a new one of the settings; its layers may be swapped."""
    data: Ids | tuple[Ids, Ids]
    """Ids to learn from, or those and ids to validate with: arrays, memory maps, or what
    `open_shards` returns."""
    loss: Loss
    """The mean loss to learn by. Validation losses are cross-entropies all the same."""
    optimizer: MakeOptimizer
    """Makes the optimizer of the model's parameters: any of torch's."""
    schedule: Schedule
    """In place of `config.schedule`."""


# What says the same thing as a part, or is a part of the loss that another one lacks.
_EXCLUDED = {
    "data": ("tuning.chats", "data.mix"),
    "loss": ("tuning.chats", "z_loss", "multi_token_weight"),
    "optimizer": ("optimizer.ema_fraction",),
}


def check_overrides(config: RunConfig, overrides: Overrides) -> None:
    """Raise ConfigError where the parts and the settings cannot be one run."""
    if not isinstance(overrides.get("model"), TransformerLM | None):
        raise ConfigError("model must be a TransformerLM, whose layers may be swapped")
    if "data" in overrides and config.model.document_separator == "auto":
        raise ConfigError("model.document_separator is auto, which needs shards: give the id")
    for part, names in _EXCLUDED.items():
        for name in names:
            if part in overrides and operator.attrgetter(name)(config):
                raise ConfigError(f"a custom {part} cannot be used with {name}: remove one")


def parts_of(overrides: Overrides) -> dict[str, str]:
    """What is recorded of them, by name. Of data the environment has the content."""
    model = overrides.get("model")
    names = ("loss", "optimizer", "schedule")
    found = {name: identify(part) for name, part in overrides.items() if name in names}
    return found if model is None else swapped_parts(model) | found


# A resume may change these settings freely; with others its weights would be of no use. All the
# rest, and other data or other first weights, needs --allow-changes.
_FREE = ("logging.", "micro_batch_size")
_FIXED = ("model.", "optimizer.name")
# A run is called as its folder is.
_NAMES = ("name", "runs_folder")
_INPUTS = ("data", "start_from")
# With others a resume may round differently.
_CONDITIONS = ("groundup", "python", "torch", "numpy", "machine", "device", "num_threads")


def describe_environment(config: RunConfig, data: DataIds, end_id: int | None) -> dict[str, Any]:
    """Everything that decides a run besides its settings, as environment.json holds it."""
    # A run without a mix says nothing of one.
    hidden = ("folder",) if data.mix is not None else ("folder", "mix")
    versions = {"groundup": __version__, "torch": torch.__version__, "numpy": numpy.__version__}
    return {
        **versions,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "device": device_name(config.device),
        "peak_flops_per_second": find_peak(config),
        "num_cores": num_cores(),
        "num_threads": torch.get_num_threads(),
        "git_commit": _git_commit(),
        "command": list(map(path_text, sys.argv)),
        "seed": config.seed,
        "data": {name: value for name, value in asdict(data).items() if name not in hidden},
        "end_id": end_id,
        "started": _now(),
    }


def note_resume(
    environment: dict[str, Any],
    folder: RunFolder,
    config: RunConfig,
    settings: Mapping[str, Any],
    *,
    allow_changes: bool,
) -> tuple[dict[str, Any], list[str]]:
    """The environment the run began in, with a note of this resume, and what has changed.

    Raises ConfigError for changes that must be allowed and are not, or that make the old weights
    useless. `settings` are those of the checkpoint, or of the run without one.
    """
    old, before = folder.read_environment(), dict(flatten(settings))
    # Settings that an older version did not have are as it was without.
    changes = {
        key: f"{key}: {before[key]!r} -> {value!r}"
        for key, value in flatten(config.model_dump(mode="json"))
        if before.get(key, value) != value and key not in _NAMES
    }
    # Dropout takes its random numbers by micro-batches.
    free = _FREE[: 1 if config.model.dropout else None]
    fixed = [key for key in changes if key.startswith(_FIXED)]
    refused = [change for key, change in changes.items() if not key.startswith(free)]
    found = {
        key: f"{key}: {old[key]} -> {environment[key]}"
        for key in (*_INPUTS, *_CONDITIONS)
        if key in old and key in environment and old[key] != environment[key]
    }
    refused += [found[key] for key in _INPUTS if key in found]
    is_readable = isinstance(old.get("data"), dict)
    if not is_readable:
        refused.append(f"{folder.environment_file.name} is damaged or missing")
    if fixed or (refused and not allow_changes):
        advice = "Resume with its own settings and data, or accept this with --allow-changes"
        if fixed:
            advice = f"Its weights do not fit another {fixed[0]}: begin a new run, with --name"
        raise ConfigError(f"the run in {folder.path} has changed: {'; '.join(refused)}. {advice}")
    named = [*found.values(), *changes.values()]
    resumes = [*old.get("resumes", []), {"started": _now(), "changes": named}]
    return (old if is_readable else environment) | {"resumes": resumes}, named


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def _git_commit() -> str | None:
    """The commit of the repository that the process stands in, "-dirty" if files differ from it."""
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
