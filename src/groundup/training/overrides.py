"""What a program brings to a run instead of settings and shards: a model, ids, a loss."""

import hashlib
from collections.abc import Callable, Mapping
from typing import TypedDict

from torch import Tensor

from groundup.data.batches.windows import IdArray, Ids
from groundup.data.shards import DataIds, Shards
from groundup.errors import ConfigError, DataError
from groundup.model import TransformerLM
from groundup.runs.config import RunConfig
from groundup.tokenizer import Tokenizer

Loss = Callable[[TransformerLM, Tensor, Tensor], Tensor]
"""Of a model, inputs and targets, both (rows, seq): the mean over the targets."""

_CHUNK_IDS = 1 << 22


class Overrides(TypedDict, total=False):
    """Parts of a run that take the place of what its settings say. A resume needs them again."""

    model: TransformerLM
    """Learns instead of a new one of the settings; its layers may be swapped."""
    data: Ids | tuple[Ids, Ids]
    """Ids to learn from, or those and ids to validate with: arrays, memory maps, or what
    `open_shards` returns."""
    loss: Loss
    """The mean loss to learn by. Validation losses are cross-entropies all the same."""


def check_overrides(config: RunConfig, overrides: Overrides) -> None:
    """Raise ConfigError where the parts and the settings cannot be one run."""
    model, has_loss = overrides.get("model"), "loss" in overrides
    if model is not None and not isinstance(model, TransformerLM):
        raise ConfigError(
            f"model must be a TransformerLM, whose layers may be swapped, got "
            f"{type(model).__name__}"
        )
    clashes = {
        "data and tuning.chats both say what to learn": "data" in overrides and config.tuning.chats,
        "data and data.mix both say what to learn": "data" in overrides and config.data.mix,
        "a loss of one's own goes without tuning.chats": has_loss and config.tuning.chats,
        "a loss of one's own goes without z_loss": has_loss and config.z_loss,
        "a loss of one's own goes without multi_token_weight": has_loss
        and config.multi_token_weight,
    }
    for text, is_found in clashes.items():
        if is_found:
            raise ConfigError(f"{text}: give one of them")


def open_ids(
    data: Ids | tuple[Ids, Ids], config: RunConfig, tokenizer: Tokenizer
) -> tuple[Shards | IdArray, Shards | IdArray | None, DataIds]:
    """Ids to train on, ids to validate with, and what to remember of them."""
    parts = data if isinstance(data, tuple) else (data,)
    splits = dict(zip(("train", "validation"), map(_as_rows, parts), strict=False))
    content = hashlib.sha256()
    for name, rows in splits.items():
        for begin in range(0, rows.num_ids, _CHUNK_IDS):
            ids = rows.read(begin, min(begin + _CHUNK_IDS, rows.num_ids))
            if int(ids.min()) < 0 or int(ids.max()) >= config.model.vocab_size:
                raise DataError(
                    f"the {name} dataset has ids from {ids.min()} to {ids.max()}, but "
                    f"model.vocab_size is {config.model.vocab_size}"
                )
            content.update(ids.astype("<u4").tobytes())
        content.update(name.encode())
    num_ids: Mapping[str, int] = {name: rows.num_ids for name, rows in splits.items()}
    found = DataIds(
        "a dataset of the caller's",
        content.hexdigest(),
        tokenizer.id,
        tokenizer.vocab_size,
        dict(num_ids),
    )
    return splits["train"], splits.get("validation"), found


def _as_rows(ids: Ids) -> Shards | IdArray:
    return ids if isinstance(ids, Shards | IdArray) else IdArray(ids)
