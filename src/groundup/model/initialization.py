"""Model-wide weight initialization that replaces the layers' own."""

import math

import torch
from torch import nn

from groundup.model.config import ModelConfig

_GPT2_STD = 0.02
_OUTPUTS = ("attention.output.weight", "feed_forward.down.weight")


@torch.no_grad()
def initialize_(model: nn.Module, config: ModelConfig) -> None:
    """gpt2: normal initialization of every matrix and embedding; norm gains stay 1, head gates 0:

        std = 0.02, and 0.02 / √(2 · num_layers) for the outputs of attention and feed-forward

    The residual stream sums 2 · num_layers such outputs, so its initial scale does not depend on
    the depth. With `zero_outputs`, these weights are 0.
    """
    residual_std = _GPT2_STD / math.sqrt(2 * max(1, config.num_layers))
    for name, parameter in model.named_parameters():
        is_output = name.endswith(_OUTPUTS)
        is_matrix = parameter.ndim == 2 and "head_gate" not in name
        if config.initialization == "gpt2" and is_matrix and not parameter.is_meta:
            parameter.normal_(0.0, residual_std if is_output else _GPT2_STD)
        if config.zero_outputs and is_output:
            parameter.zero_()
