"""Tuning a trained model on conversations: what differs from training on shards.

The loop, the step and the files of a run are the same; here are the data, the evaluation on
held-out conversations, the adapters, and how long such a run is by default.
"""

import logging
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from groundup.config import load_settings
from groundup.data.batches.loader import Batch
from groundup.data.chats.encoding import EncodedConversations, encode_conversations
from groundup.data.chats.packing import PackedRows, split
from groundup.data.chats.reading import read_conversations
from groundup.data.shards import DataIds
from groundup.errors import ConfigError, DataError
from groundup.model import TransformerLM
from groundup.nn.adapters import add_adapters
from groundup.runs.config import RunConfig, with_num_steps
from groundup.runtime import count_of
from groundup.tokenizer import Tokenizer
from groundup.training.evaluation import Evaluation, token_bytes
from groundup.training.execution import resolve
from groundup.training.step import count_targets, summed_loss

if TYPE_CHECKING:
    from groundup.training.run_data import RunData

# A short run of many small steps learns more than one of a few large ones.
_BATCH_SIZE = 8
_LEAST_STEPS = 100

_log = logging.getLogger(__name__)


def with_template(tokenizer: Tokenizer, template: Path | None = None) -> Tokenizer:
    """The tokenizer with a chat template: that of a file, its own, or ChatML.

    tokenizer: of the model to tune.
    template: a file of Jinja.
    """
    if template is not None:
        try:
            return tokenizer.with_chat(template.read_text("utf-8"))
        except UnicodeDecodeError:
            raise ConfigError(f"the chat template {template} is not UTF-8") from None
    return tokenizer if tokenizer.chat_template is not None else tokenizer.with_chat()


def open_conversations(
    config: RunConfig, tokenizer: Tokenizer
) -> tuple[PackedRows, PackedRows | None, DataIds]:
    """The conversations of a run, packed into rows: for training, held out, and what they are.

    config: of a run with `tuning.chats`.
    tokenizer: with a chat template.
    """
    names = ", ".join(map(str, config.tuning.chats))
    found, train, validation = _read_rows(config, tokenizer)
    if validation is None:
        _log.warning("%s: no conversation is held out, so there is no validation loss", names)
    num_held_out = 0 if validation is None else validation.num_conversations
    _log.info(
        "%s for training and %d for validation, %d%% of their tokens in answers; %s, %d%% full",
        count_of(train.num_conversations, "conversation"),
        num_held_out,
        round(100 * float(found.is_answer.mean())),
        count_of(train.num_rows, "row"),
        round(100 * train.fill_fraction),
    )
    if found.num_cut:
        _log.warning(
            "cut at the context of %d tokens: %s, of which %d with no answer before the cut are "
            "left out; a larger --context-length keeps them whole",
            config.model.context_length,
            count_of(found.num_cut, "conversation"),
            found.num_dropped,
        )
    num_ids = {"train": train.num_ids}
    if validation is not None:
        num_ids["validation"] = validation.num_ids
    ids = DataIds(names, found.content_id, tokenizer.id, tokenizer.vocab_size, num_ids)
    return train, validation, ids


def evaluate_answers(
    config: RunConfig,
    model: TransformerLM,
    tokenizer: Tokenizer,
    *,
    split: str = "validation",
    num_rows: int | None = None,
    batch_size: int = 32,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Evaluation:
    """How well a model predicts the answers of a run's conversations.

    config: of the run.
    model, tokenizer: what predicts.
    split: validation, those that were held out, or train.
    num_rows: the first so many rows of them; all if None.
    batch_size: rows at once.
    autocast: what the forward passes run within.
    """
    _, train, validation = _read_rows(config, tokenizer)
    rows = {"train": train, "validation": validation}.get(split)
    if rows is None:
        raise DataError(f"the conversations of the run have no {split} split: choose --split train")
    return ConversationEvaluator(rows, tokenizer, num_rows, batch_size)(model, autocast)


def adapt(model: TransformerLM, rank: int, special_ids: Collection[int]) -> None:
    """Freeze the model, and put adapters beside the linear layers of its blocks.

    The rows of the special tokens learn too, in embeddings and in the output layer: a token that
    ends a turn has to be recognized and predicted.

    model: as it begins.
    rank: of the adapters.
    special_ids: ids of the special tokens.
    """
    model.requires_grad_(False)
    tables: list[nn.Module] = [model.token_embedding, model.lm_head]
    add_adapters(model.blocks, rank, tables, sorted(special_ids))


def choose_epochs(
    config: RunConfig, data: "RunData", *, num_epochs: float, chosen: Collection[str] = ()
) -> RunConfig:
    """The run with as many steps as some epochs take; with few conversations the batches shrink.

    config: the run as it is, its steps counted in fractions of `num_steps`.
    data: its conversations.
    num_epochs: how often each is to be seen.
    chosen: dotted names of settings that a person set.
    """
    assert isinstance(data.train, PackedRows)
    num_rows = num_epochs * data.train.num_rows
    if "batch_size" not in chosen:
        batch_size = max(1, min(_BATCH_SIZE, int(num_rows / _LEAST_STEPS)))
        changes: dict[str, Any] = {"batch_size": batch_size, "micro_batch_size": "auto"}
        config = resolve(load_settings(RunConfig, None, {**config.model_dump(), **changes}))
    if "num_steps" in chosen:
        return config
    return with_num_steps(config, max(1, round(num_rows / config.batch_size)), chosen)


class ConversationEvaluator:
    """Predicts the answers of the same held-out conversations each time it is asked.

    rows: of the conversations.   tokenizer: says how many bytes each id stands for.
    num_rows: the first so many of them; all if None.   batch_size: rows at once.
    """

    def __init__(
        self,
        rows: PackedRows,
        tokenizer: Tokenizer,
        num_rows: int | None = 256,
        batch_size: int = 32,
    ) -> None:
        self._rows = rows
        self._token_bytes = token_bytes(tokenizer)
        self._batch_size = batch_size
        self._num_rows = rows.num_rows if num_rows is None else min(num_rows, rows.num_rows)

    def __call__(
        self,
        model: TransformerLM,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> Evaluation:
        device = model.device
        losses: list[torch.Tensor] = []
        num_tokens = num_bytes = 0
        with torch.no_grad(), autocast():
            for first in range(0, self._num_rows, self._batch_size):
                numbers = np.arange(first, min(first + self._batch_size, self._num_rows))
                parts = np.empty((3, len(numbers), self._rows.context_length), np.int64)
                self._rows.fill(parts, numbers)
                inputs, targets, positions = torch.from_numpy(parts).to(device)
                batch = Batch(0, inputs, targets, None, positions)
                losses.append(summed_loss(model, batch))
                num_tokens += int(count_targets(batch))
                num_bytes += int(self._token_bytes[parts[1][parts[1] >= 0]].sum())
        nats = torch.stack(losses).cpu().double().sum().item()
        return Evaluation.of(nats, num_tokens, num_bytes)


def _read_rows(
    config: RunConfig, tokenizer: Tokenizer
) -> tuple[EncodedConversations, PackedRows, PackedRows | None]:
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
    return found, train, PackedRows(found, held_out, context_length) if len(held_out) else None
