"""What a program brings to a run instead of settings and shards: a model, ids, a loss."""

import hashlib
import operator
from collections.abc import Callable
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


# What says the same thing as a part, or is a part of the loss that another one lacks.
_EXCLUDED = {
    "data": ("tuning.chats", "data.mix"),
    "loss": ("tuning.chats", "z_loss", "multi_token_weight"),
}


def check_overrides(config: RunConfig, overrides: Overrides) -> None:
    """Raise ConfigError where the parts and the settings cannot be one run."""
    if not isinstance(overrides.get("model"), TransformerLM | None):
        raise ConfigError("model must be a TransformerLM, whose layers may be swapped")
    for part, names in _EXCLUDED.items():
        for name in names:
            if part in overrides and operator.attrgetter(name)(config):
                raise ConfigError(f"a {part} of one's own goes without {name}: give one of them")


def open_ids(
    data: Ids | tuple[Ids, Ids], config: RunConfig, tokenizer: Tokenizer
) -> tuple[Shards | IdArray, Shards | IdArray | None, DataIds]:
    """Ids to train on, ids to validate with, and what to remember of them."""
    parts = data if isinstance(data, tuple) else (data,)
    rows = [ids if isinstance(ids, Shards | IdArray) else IdArray(ids) for ids in parts]
    splits = dict(zip(("train", "validation"), rows, strict=False))
    content = hashlib.sha256()
    for name, split in splits.items():
        for begin in range(0, split.num_ids, _CHUNK_IDS):
            ids = split.read(begin, min(begin + _CHUNK_IDS, split.num_ids))
            if int(ids.min()) < 0 or int(ids.max()) >= config.model.vocab_size:
                raise DataError(
                    f"the {name} dataset has ids from {ids.min()} to {ids.max()}, but "
                    f"model.vocab_size is {config.model.vocab_size}"
                )
            content.update(ids.astype("<u4").tobytes())
        content.update(name.encode())
    num_ids = {name: split.num_ids for name, split in splits.items()}
    known = tokenizer.id, tokenizer.vocab_size
    found = DataIds("a dataset of the caller's", content.hexdigest(), *known, num_ids)
    return splits["train"], splits.get("validation"), found
