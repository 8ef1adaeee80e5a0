"""How a model's weights begin, where the layers' own initial values are not wanted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from groundup.model.transformer import TransformerLM

_GPT2_STD = 0.02
_OUTPUTS = ("attention.output.weight", "feed_forward.down.weight")


@torch.no_grad()
def initialize_like_gpt2_(model: TransformerLM) -> None:
    """Normal values for every matrix and embedding; norm gains stay 1:

        std = 0.02, and 0.02 / √(2 · num_layers) for what a block adds to its input

    A model adds up 2 · num_layers such outputs (of attention and of feed-forward layers), so that
    their sum begins as large as one of them would be, however deep the model. Gates stay zero.
    """
    residual_std = _GPT2_STD / math.sqrt(2 * max(1, model.config.num_layers))
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and not parameter.is_meta and "head_gate" not in name:
            is_residual = name.endswith(_OUTPUTS)
            parameter.normal_(0.0, residual_std if is_residual else _GPT2_STD)


@torch.no_grad()
def zero_outputs_(model: TransformerLM) -> None:
    """Zeros for the matrices whose result a block adds to its input."""
    for name, parameter in model.named_parameters():
        if name.endswith(_OUTPUTS):
            parameter.zero_()
