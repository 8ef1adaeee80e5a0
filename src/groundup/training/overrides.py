"""What a program brings to a run instead of settings and shards: a model, ids, a loss."""

import operator
from collections.abc import Callable
from typing import TypedDict

from torch import Tensor

from groundup.data.batches.windows import Ids
from groundup.errors import ConfigError
from groundup.model import TransformerLM
from groundup.runs.config import RunConfig

Loss = Callable[[TransformerLM, Tensor, Tensor], Tensor]
"""Of a model, inputs and targets, both (rows, seq): the mean over the targets."""


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
    if "data" in overrides and config.model.document_separator == "auto":
        raise ConfigError("model.document_separator is auto, which needs shards: give the id")
    for part, names in _EXCLUDED.items():
        for name in names:
            if part in overrides and operator.attrgetter(name)(config):
                raise ConfigError(f"a {part} of one's own goes without {name}: give one of them")
