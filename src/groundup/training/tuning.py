"""Tuning a trained model on conversations: settings, data and adapters. The loop, the step and the
files of a run are the same as when it trains on shards."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from groundup.config import load_settings
from groundup.data.chats.encoding import encode_conversations
from groundup.data.chats.packing import PackedRows, split
from groundup.data.chats.reading import read_conversations
from groundup.data.shards import DataIds
from groundup.errors import ConfigError
from groundup.model import TransformerLM
from groundup.nn.adapters import add_adapters
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.tokenizer import Tokenizer
from groundup.training.start import settings_from

# Measured on a small model; the wider a model, the less of it is used, as others found.
_LEARNING_RATE, _WIDTH, _WIDTH_POWER = 3e-3, 128, 1.5
# Adapters want more than all weights do.
_ADAPTER_FACTOR = 5
_DEFAULTS: dict[str, Any] = {
    "optimizer.weight_decay": 0.0,
    "schedule.name": "linear",
    "schedule.warmup_fraction": 0.05,
    "schedule.min_learning_rate_ratio": 0.0,
    "evaluation.every_fraction": 0.25,
    "checkpoints.every_fraction": 0.25,
    "checkpoints.keep_last": 1,
    "logging.every_fraction": 0.05,
}


def tuning_config(source: RunFolder, given: Mapping[str, Any], epochs: float = 3.0) -> RunConfig:
    """The settings of a run that tunes another one.

    given: what a person chose, by dotted name; tuning.chats and name among it.
    """
    values = settings_from(source)
    tokenizer = with_template(Tokenizer.load(source.tokenizer_file), given.get("tuning.template"))
    if tokenizer.vocab_size > values["model.vocab_size"]:
        # Matmuls on GPUs want rows of 16 bytes.
        values["model.vocab_size"] = -(-tokenizer.vocab_size // 8) * 8
    rate = _LEARNING_RATE * min(1.0, _WIDTH / values["model.d_model"]) ** _WIDTH_POWER
    if given.get("tuning.lora_rank") is not None:
        rate *= _ADAPTER_FACTOR
    values["optimizer.learning_rate"] = float(f"{rate:.1e}")
    if given.get("num_steps") is None and given.get("minutes") is None:
        values["epochs"] = epochs
    merged = {**_DEFAULTS, **values, **given, "start_from": source.path}
    return load_settings(RunConfig, None, merged)


def with_template(tokenizer: Tokenizer, template: Path | None = None) -> Tokenizer:
    """The tokenizer with a chat template: that of a file, its own, or ChatML."""
    if template is not None:
        try:
            return tokenizer.with_chat(Path(template).read_text("utf-8"))
        except UnicodeDecodeError:
            raise ConfigError(f"the chat template {template} is not UTF-8") from None
    return tokenizer if tokenizer.chat_template is not None else tokenizer.with_chat()


def open_conversations(
    config: RunConfig, tokenizer: Tokenizer
) -> tuple[PackedRows, PackedRows | None, DataIds]:
    """The rows of a run for training, those held out, and what they are."""
    context_length = config.model.context_length
    if config.model.vocab_size < tokenizer.vocab_size:
        raise ConfigError(
            f"vocab_size {config.model.vocab_size} is too small for a tokenizer of "
            f"{tokenizer.vocab_size} tokens; set the model's vocab_size to that or more"
        )
    found = encode_conversations(
        read_conversations(config.tuning.chats), tokenizer, context_length + 1
    )
    chosen, held_out = split(len(found), config.tuning.validation_fraction)
    train = PackedRows(found, chosen, context_length)
    validation = PackedRows(found, held_out, context_length) if len(held_out) else None
    num_ids = {"train": train.num_ids}
    if validation is not None:
        num_ids["validation"] = validation.num_ids
    names = ", ".join(map(str, config.tuning.chats))
    ids = DataIds(names, found.content_id, tokenizer.id, tokenizer.vocab_size, num_ids)
    return train, validation, ids


def adapt(model: TransformerLM, rank: int, special_ids: Collection[int]) -> None:
    """Freeze the model, and put adapters of this rank beside the linear layers of its blocks.

    The rows of the special tokens learn too, in embeddings and in the output layer: a token that
    ends a turn has to be recognized and predicted.
    """
    model.requires_grad_(False)
    tables: list[nn.Module] = [model.token_embedding, model.lm_head]
    add_adapters(model.blocks, rank, tables, sorted(special_ids))
