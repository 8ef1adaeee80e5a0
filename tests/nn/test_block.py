"""The Transformer block against its formula put together by hand."""

import itertools
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from groundup.nn import TransformerBlock
from groundup.nn.limits import FeedForwardKind, NormPlacement

NORMS, KINDS = get_args(NormPlacement), get_args(FeedForwardKind)
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "swiglu": functional.silu,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "relu2": lambda x: functional.relu(x).square(),
}


def block(norm: NormPlacement, kind: FeedForwardKind) -> TransformerBlock:
    layer = TransformerBlock(12, 3, 20, max_seq_len=16, theta=100.0, norm=norm, feed_forward=kind)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 2.0)
    return layer


def twin(layer: TransformerBlock, x: Tensor, norm: NormPlacement, kind: FeedForwardKind) -> Tensor:
    """By torch's functions; test_attention.py holds the attention against a twin of its own."""
    weights, attention = dict(layer.named_parameters()), layer.attention

    def linear(name: str, x: Tensor) -> Tensor:
        return functional.linear(x, weights[f"{name}.weight"])

    def normal(name: str, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (12,), weights[f"{name}.weight"], 1e-5)

    def feed_forward(x: Tensor) -> Tensor:
        inner = FUNCTIONS[kind](linear(f"feed_forward.{'gate' if kind == 'swiglu' else 'up'}", x))
        if kind == "swiglu":
            inner = inner * linear("feed_forward.up", x)
        return linear("feed_forward.down", inner)

    if norm == "pre":
        z = x + attention(normal("attention_norm", x))
        return z + feed_forward(normal("feed_forward_norm", z))
    if norm == "post":
        z = normal("attention_norm", x + attention(x))
        return normal("feed_forward_norm", z + feed_forward(z))
    z = x + attention(x)
    return z + feed_forward(z)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm", NORMS)
def test_equals_its_formula(norm: NormPlacement, kind: FeedForwardKind, agree: Any) -> None:
    layer = block(norm, kind)
    x = torch.randn(2, 9, 12, requires_grad=True)
    agree(layer(x), twin(layer, x, norm, kind), [x, *layer.parameters()], 1e-4, 1e-4)


@pytest.mark.parametrize("norm", NORMS)
def test_leading_dimensions_are_sequences_apart_and_positions_reach_the_attention(
    norm: NormPlacement,
) -> None:
    layer = block(norm, "swiglu")
    x = torch.randn(2, 2, 7, 12)
    out = layer(x)
    for index in itertools.product(range(2), range(2)):
        torch.testing.assert_close(layer(x[index]), out[index])
    torch.testing.assert_close(layer(x, torch.arange(7)), out)
    assert not torch.allclose(layer(x, torch.arange(7).flip(0)), out)
