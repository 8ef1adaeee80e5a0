"""The Transformer block against its formula put together by hand."""

import itertools
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from groundup.nn import TransformerBlock
from groundup.nn.limits import NormPlacement

NORMS = get_args(NormPlacement)


def twin(layer: TransformerBlock, x: Tensor, norm: NormPlacement) -> Tensor:
    """test_attention.py and test_layers.py hold the parts against twins of their own."""
    attention, feed_forward = layer.attention, layer.feed_forward

    def normal(name: str, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (12,), layer.get_parameter(f"{name}_norm.weight"), 1e-5)

    if norm == "pre":
        z = x + attention(normal("attention", x))
        return z + feed_forward(normal("feed_forward", z))
    if norm == "post":
        z = normal("attention", x + attention(x))
        return normal("feed_forward", z + feed_forward(z))
    z = x + attention(x)
    return z + feed_forward(z)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("norm", NORMS)
def test_equals_its_formula_for_sequences_apart_with_positions(
    norm: NormPlacement, agree: Any
) -> None:
    layer = TransformerBlock(12, 3, 20, max_seq_len=16, theta=100.0, norm=norm)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 2.0)
    x = torch.randn(2, 2, 7, 12, requires_grad=True)
    out = layer(x)
    agree(out, twin(layer, x, norm), [x, *layer.parameters()], 1e-4, 1e-4)
    for index in itertools.product(range(2), range(2)):
        torch.testing.assert_close(layer(x[index]), out[index])
    torch.testing.assert_close(layer(x, torch.arange(7)), out)
    assert not torch.allclose(layer(x, torch.arange(7).flip(0)), out)
