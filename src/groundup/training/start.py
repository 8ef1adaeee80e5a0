"""A new run that begins with the weights of another: what has to fit, and what is remembered."""

import os
from dataclasses import dataclass
from typing import Any

import torch

from groundup.checkpoint import Checkpoint, CheckpointFolder, check_shapes
from groundup.errors import CheckpointError, ConfigError
from groundup.model import ModelConfig, TransformerLM
from groundup.model.transformer import weight_shapes
from groundup.runs.folder import RunFolder
from groundup.tokenizer import Tokenizer

# With a row for each token.
_TABLES = ("token_embedding.weight", "lm_head.weight")
# Settings that change neither the weights nor how they are to be read, or that weights adapt to.
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
    new_ids: tuple[int, ...]
    """The tokens that its tokenizer does not have."""

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], config: ModelConfig, tokenizer: Tokenizer
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
        checkpoints = CheckpointFolder(folder.checkpoints)
        if not checkpoints.steps():
            raise CheckpointError(f"{path} has no checkpoint yet: train until one is written")
        checkpoint = checkpoints.newest()
        check_shapes(weight_shapes(source), checkpoint.model_state())
        return cls(folder, checkpoint, tuple(sorted(tokenizer.vocab.keys() - ids)))

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
        for name, weight in self.checkpoint.model_state().items():
            target = own[name]
            target[: len(weight)].copy_(weight)
            if name in _TABLES and self.new_ids:
                target[list(self.new_ids)] = weight.mean(0).to(target)


def _decisive(config: ModelConfig) -> dict[str, Any]:
    """The settings of a model that its weights depend on, defaults by rule filled in."""
    return {
        **config.model_dump(exclude={*_MAY_DIFFER, "embedding_scale"}),
        "d_ff": config.feed_forward_dim,
        "num_kv_heads": config.key_value_heads,
        "embedding_scale": config.input_scale,
    }
