"""Activations, softmax, attention, RoPE and losses against torch."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from groundup.errors import ConfigError, DataError
from groundup.nn import (
    RotaryEmbedding,
    cross_entropy,
    gelu,
    scaled_dot_product_attention,
    silu,
    softmax,
    squared_relu,
    z_loss,
)
from groundup.nn.functional import dropout, fused_attention
from groundup.nn.losses import perplexity

Function = Callable[[Tensor], Tensor]
ACTIVATIONS: list[tuple[Function, Function]] = [
    (silu, functional.silu),
    (gelu, functional.gelu),
    (squared_relu, lambda x: functional.relu(x).square()),
]


@pytest.mark.parametrize(("ours", "theirs"), ACTIVATIONS, ids=["silu", "gelu", "relu2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_equal_torch(
    ours: Function, theirs: Function, dtype: torch.dtype, agree: Any
) -> None:
    x = (3 * torch.randn(2, 3, 5)).to(dtype).requires_grad_()
    tolerance = {"atol": 0.05, "rtol": 0.05} if dtype == torch.bfloat16 else {}
    agree(ours(x), theirs(x.double()), [x], **tolerance)
    assert ours(x).dtype == dtype
    far = torch.tensor([-1e4, -90.0, 0.0, 90.0, 1e4], requires_grad=True)
    torch.testing.assert_close(ours(far), theirs(far))
    assert torch.autograd.grad(ours(far).sum(), far)[0].isfinite().all()


@pytest.mark.parametrize("rate", [0.1, 0.75])
def test_dropout_zeroes_its_rate_and_keeps_the_mean(rate: float) -> None:
    x = torch.ones(400, 500, dtype=torch.bfloat16, requires_grad=True)
    out = dropout(x, rate)
    assert out.dtype == torch.bfloat16
    assert (out == 0).double().mean().item() == pytest.approx(rate, abs=0.005)
    kept = out[out != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - rate)))
    assert torch.equal(torch.autograd.grad(out.sum(), x)[0], out)


@pytest.mark.parametrize(("shape", "dim"), [((5,), 0), ((2, 3, 7), 1), ((2, 3, 7), -1)])
def test_softmax_equals_torch_for_any_scores(shape: tuple[int, ...], dim: int, agree: Any) -> None:
    x = torch.randn(shape, requires_grad=True)
    agree(softmax(x, dim), torch.softmax(x, dim), [x])
    huge = torch.tensor([[1e4, -1e4, 1e4], [-1e4, -1e4, -1e4], [0.0, -torch.inf, 0.0]])
    torch.testing.assert_close(softmax(huge, dim=-1), torch.softmax(huge, dim=-1))


@pytest.mark.parametrize(
    ("leading", "mask_shape"),
    [((), None), ((), (5, 7)), ((3,), (3, 5, 7)), ((2, 4), (2, 1, 5, 7)), ((2, 1, 3), (5, 7))],
)
def test_attention_equals_torch_with_boolean_masks(
    leading: tuple[int, ...], mask_shape: tuple[int, ...] | None, agree: Any
) -> None:
    query, key, value = parts = [
        torch.randn(*leading, *shape, requires_grad=True) for shape in ((5, 6), (7, 6), (7, 3))
    ]
    mask = None
    if mask_shape is not None:
        mask = torch.rand(mask_shape) < 0.6
        mask[..., 0] = True
    twin = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    agree(scaled_dot_product_attention(query, key, value, mask), twin, parts)
    causal = torch.ones(7, 7, dtype=torch.bool).tril()
    twin = scaled_dot_product_attention(key, key, value, causal)
    agree(fused_attention(key, key, value), twin, parts[1:])


def rotated_by_complex_numbers(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    d_k = x.shape[-1]
    frequencies = theta ** (-torch.arange(0, d_k, 2, dtype=torch.float64) / d_k)
    angles = positions.double().unsqueeze(-1) * frequencies
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


@pytest.mark.parametrize("leading", [(), (3,), (2, 1, 3)])
@pytest.mark.parametrize(("d_k", "theta"), [(2, 1e4), (6, 7.5), (64, 1e4)])
def test_pairs_rotate_as_complex_numbers(
    leading: tuple[int, ...], d_k: int, theta: float, agree: Any
) -> None:
    rope = RotaryEmbedding(theta, d_k, 16)
    x = torch.randn(*leading, 11, d_k, requires_grad=True)
    agree(rope(x), rotated_by_complex_numbers(x, torch.arange(11), theta), [x])
    half = x.detach().bfloat16()
    assert torch.equal(rope(half), rope(half.float()).bfloat16())
    positions = torch.randint(16, (11,))
    expected = rotated_by_complex_numbers(x, positions, theta).float()
    torch.testing.assert_close(rope(x, positions), expected)


def test_angles_of_long_sequences_are_exact_after_moving_and_casting() -> None:
    rope = RotaryEmbedding(500_000.0, 128, 131_072)
    for position, pair in itertools.product((1, 4_095, 131_071), (0, 1, 31, 63)):
        angle = position * math.pow(500_000.0, -2 * pair / 128)
        assert rope.cos[position, pair].item() == pytest.approx(math.cos(angle), abs=1e-7)
        assert rope.sin[position, pair].item() == pytest.approx(math.sin(angle), abs=1e-7)
    small = RotaryEmbedding(10_000.0, 8, 50)
    assert not small.state_dict() and not list(small.parameters())
    with torch.device("meta"):
        empty = RotaryEmbedding(10_000.0, 8, 50)
    assert torch.equal(empty.to_empty(device="cpu").sin, small.sin)
    before = small.cos.clone()
    assert torch.equal(small.to(torch.bfloat16).cos, before)
    with pytest.raises(ConfigError, match="51 positions"):
        small(torch.randn(51, 8))


@pytest.mark.parametrize("shape", [(7, 11), (2, 3, 5), (1, 1)])
def test_losses_and_gradients_equal_torch(shape: tuple[int, ...], agree: Any) -> None:
    logits = (3 * torch.randn(shape)).requires_grad_()
    targets = torch.randint(shape[-1], shape[:-1])
    theirs = functional.cross_entropy(logits.flatten(0, -2), targets.flatten())
    agree(cross_entropy(logits, targets), theirs, [logits])
    assert torch.equal(cross_entropy(logits, targets.int()), cross_entropy(logits, targets))
    for offset in (-1000.0, 1000.0):
        moved = cross_entropy(logits + offset, targets)
        torch.testing.assert_close(moved, theirs, rtol=1e-3, atol=1e-3)
    agree(z_loss(logits), torch.logsumexp(logits, -1).square().mean(), [logits])
    half = cross_entropy(logits.bfloat16(), targets)
    assert half.dtype == torch.float32 and torch.allclose(half, theirs, atol=0.05)


def test_perplexity_is_exp_of_the_loss_without_overflow_errors() -> None:
    assert perplexity(0.0) == 1.0 and perplexity(2.0) == pytest.approx(math.exp(2.0))
    assert perplexity(1e6) == math.inf


@pytest.mark.parametrize(
    ("targets", "noun"),
    [
        (torch.zeros(4, dtype=torch.long), "shape"),
        (torch.zeros(3), "integer"),
        (torch.zeros(3, dtype=torch.bool), "integer"),
    ],
)
def test_invalid_targets_are_rejected(targets: Tensor, noun: str) -> None:
    with pytest.raises(DataError, match=noun):
        cross_entropy(torch.zeros(3, 5), targets)
