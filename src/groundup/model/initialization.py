"""How a model's weights begin, where the layers' own initial values are not wanted."""

import math

import torch
from torch import nn

_GPT2_STD = 0.02
_OUTPUTS = ("attention.output.weight", "feed_forward.down.weight")


@torch.no_grad()
def initialize_like_gpt2_(model: nn.Module, num_layers: int) -> None:
    """Normal values for every matrix and embedding; norm gains stay 1, gates of heads 0:

        std = 0.02, and 0.02 / √(2 · num_layers) for what a block adds to its input

    A model adds up 2 · num_layers such outputs (of attention and of feed-forward layers), so that
    their sum begins as large as one of them would be, however deep the model.
    """
    residual_std = _GPT2_STD / math.sqrt(2 * max(1, num_layers))
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and not parameter.is_meta and "head_gate" not in name:
            parameter.normal_(0.0, residual_std if name.endswith(_OUTPUTS) else _GPT2_STD)


@torch.no_grad()
def zero_outputs_(model: nn.Module) -> None:
    """Zeros for the matrices whose result a block adds to its input."""
    for name, parameter in model.named_parameters():
        if name.endswith(_OUTPUTS):
            parameter.zero_()
