"""Self-attention and the block around it against implementations with torch's own functions."""

import itertools
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from groundup.nn import Linear, MultiHeadSelfAttention, TransformerBlock
from groundup.nn.limits import NormPlacement

THETA = 10_000.0
SHAPES = [
    {"num_heads": 4},
    {"num_heads": 4, "theta": THETA},
    {"num_heads": 1, "theta": THETA},
    {"num_heads": 4, "theta": THETA, "num_kv_heads": 2},
    {"num_heads": 4, "num_kv_heads": 1},
    {"num_heads": 4, "theta": THETA, "qk_norm": True},
    {"num_heads": 6, "theta": THETA, "num_kv_heads": 3, "qk_norm": True},
]


def attention(d_model: int = 24, **settings: Any) -> MultiHeadSelfAttention:
    """A layer for up to 32 tokens, with gains (if any) different from 1."""
    layer = MultiHeadSelfAttention(d_model, max_seq_len=32, **settings)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 2.0)
    return layer


def twin(layer: MultiHeadSelfAttention, x: Tensor, positions: Tensor | None = None) -> Tensor:
    """The same attention, split, repeated and masked in other ways, in float64."""
    seq = x.shape[-2]
    positions = torch.arange(seq) if positions is None else positions[..., None, :]

    def heads(projection: Linear) -> Tensor:
        projected = functional.linear(x.double(), projection.weight.double())
        return projected.unflatten(-1, (-1, layer.d_head)).transpose(-2, -3)

    query, key, value = heads(layer.query), heads(layer.key), heads(layer.value)
    if layer.query_norm is not None and layer.key_norm is not None:
        size = (layer.d_head,)
        query = functional.rms_norm(query, size, layer.query_norm.weight.double(), 1e-5)
        key = functional.rms_norm(key, size, layer.key_norm.weight.double(), 1e-5)
    if layer.rope is not None:
        query, key = layer.rope(query, positions), layer.rope(key, positions)
    serving = torch.arange(layer.num_heads) // (layer.num_heads // layer.num_kv_heads)
    mixed = functional.scaled_dot_product_attention(
        query, key[..., serving, :, :], value[..., serving, :, :],
        attn_mask=torch.ones(seq, seq, dtype=torch.bool).tril(),
    )  # fmt: skip
    return functional.linear(mixed.transpose(-2, -3).flatten(-2), layer.output.weight.double())


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((11,), torch.float32), ((2, 1, 2, 5), torch.float64), ((3, 32), torch.bfloat16)],
)
@pytest.mark.parametrize("settings", SHAPES, ids=str)
def test_attention_equals_an_independent_implementation(
    settings: dict[str, Any], shape: tuple[int, ...], dtype: torch.dtype, agree: Any
) -> None:
    # Looser in half precision, because the gradients of gains are sums that nearly cancel.
    is_half = dtype == torch.bfloat16
    d_model = 96 if is_half else 24
    layer = attention(d_model, dtype=dtype, **settings)
    x = torch.randn(*shape, d_model, dtype=dtype, requires_grad=True)
    out = layer(x)
    assert out.dtype == dtype
    inputs = [x, *layer.parameters()]
    agree(out, twin(layer, x), inputs, 1e-4, 1e-5, relative=0.03 if is_half else None)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("shape", [(9,), (1, 9), (2, 9)])
def test_positions_apply_to_every_head(shape: tuple[int, ...]) -> None:
    layer = attention(num_heads=4, theta=THETA, num_kv_heads=2)
    x = torch.randn(2, 9, 24)
    positions = torch.randint(32, shape)
    torch.testing.assert_close(layer(x, positions), twin(layer, x, positions).float())


def block_twin(layer: TransformerBlock, x: Tensor, norm: NormPlacement) -> Tensor:
    """The formula of a block, from independently tested parts."""
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
@pytest.mark.parametrize("norm", get_args(NormPlacement))
def test_a_block_equals_its_formula(norm: NormPlacement, agree: Any) -> None:
    layer = TransformerBlock(12, 3, 20, max_seq_len=16, theta=100.0, norm=norm)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 2.0)
    x = torch.randn(2, 2, 7, 12, requires_grad=True)
    out = layer(x)
    agree(out, block_twin(layer, x, norm), [x, *layer.parameters()], 1e-4, 1e-4)
    for index in itertools.product(range(2), range(2)):
        torch.testing.assert_close(layer(x[index]), out[index])
    torch.testing.assert_close(layer(x, torch.arange(7)), out)
    assert not torch.allclose(layer(x, torch.arange(7).flip(0)), out)
