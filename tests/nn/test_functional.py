"""Activations, softmax and attention against torch's own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from groundup.nn import gelu, scaled_dot_product_attention, silu, softmax, squared_relu
from groundup.nn.functional import dropout, fused_attention

ACTIVATIONS: list[tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = [
    (silu, functional.silu),
    (gelu, functional.gelu),
    (squared_relu, lambda x: functional.relu(x).square()),
]
NAMES = ["silu", "gelu", "relu2"]


@pytest.mark.parametrize(("ours", "theirs"), ACTIVATIONS, ids=NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (7,), (2, 3, 5), (0,)])
def test_activations_equal_torch(
    ours: Callable[[Tensor], Tensor],
    theirs: Callable[[Tensor], Tensor],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    agree: Any,
) -> None:
    x = (3 * torch.randn(shape)).to(dtype).requires_grad_()
    out = ours(x)
    assert out.dtype == dtype
    tolerance = {"atol": 0.05, "rtol": 0.05} if dtype == torch.bfloat16 else {}
    agree(out, theirs(x.double()), [x], **tolerance)


@pytest.mark.parametrize(("ours", "theirs"), ACTIVATIONS, ids=NAMES)
def test_activations_stay_finite_far_out(
    ours: Callable[[Tensor], Tensor], theirs: Callable[[Tensor], Tensor]
) -> None:
    x = torch.tensor([-1e4, -90.0, 0.0, 90.0, 1e4], requires_grad=True)
    out = ours(x)
    torch.testing.assert_close(out, theirs(x))
    (d_x,) = torch.autograd.grad(out.sum(), x)
    assert d_x.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rate", [0.1, 0.75])
def test_dropout_zeroes_its_rate_and_keeps_the_mean(rate: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.ones(400, 500, dtype=dtype, requires_grad=True)
    out = dropout(x, rate)
    assert out.dtype == dtype
    assert (out == 0).double().mean().item() == pytest.approx(rate, abs=0.005)
    kept = out[out != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - rate)))
    (d_x,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(d_x, out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "dim"),
    [((5,), 0), ((5,), -1), ((2, 3, 7), 0), ((2, 3, 7), 1), ((2, 3, 7), -1), ((4, 1), -1)],
)
def test_softmax_equals_torch(
    shape: tuple[int, ...], dim: int, dtype: torch.dtype, agree: Any
) -> None:
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    tolerance = {"atol": 0.01, "rtol": 0.03} if dtype == torch.bfloat16 else {}
    agree(softmax(x, dim), torch.softmax(x, dim), [x], **tolerance)


def test_softmax_is_stable_for_huge_scores() -> None:
    x = torch.tensor([[1e4, -1e4, 1e4], [-1e4, -1e4, -1e4], [1e4, 1e4 - 1, -1e4]])
    out = softmax(x, dim=-1)
    torch.testing.assert_close(out, torch.softmax(x.double(), dim=-1).float())
    torch.testing.assert_close(out.sum(dim=-1), torch.ones(3))
    assert softmax(torch.tensor([0.0, -torch.inf, 0.0]), dim=0).tolist() == [0.5, 0.0, 0.5]


def random_mask(*shape: int) -> Tensor:
    """Some pairs forbidden, but no query without a key."""
    mask = torch.rand(shape) < 0.6
    mask[..., 0] = True
    return mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("leading", "mask_shape"),
    [
        ((), None),
        ((), (5, 7)),
        ((3,), None),
        ((3,), (3, 5, 7)),
        ((3,), (5, 7)),
        ((2, 4), (2, 4, 5, 7)),
        ((2, 4), (2, 1, 5, 7)),
        ((2, 4), (5, 7)),
        ((2, 1, 3), (5, 7)),
    ],
)
def test_attention_equals_torch_with_boolean_masks(
    leading: tuple[int, ...], mask_shape: tuple[int, ...] | None, dtype: torch.dtype, agree: Any
) -> None:
    query, key, value = parts = [
        torch.randn(*leading, *shape, dtype=dtype, requires_grad=True)
        for shape in ((5, 6), (7, 6), (7, 3))
    ]
    mask = None if mask_shape is None else random_mask(*mask_shape)
    out = scaled_dot_product_attention(query, key, value, mask)
    twin = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    assert out.shape == (*leading, 5, 3)
    agree(out, twin, parts)


@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (2, 1, 3)])
def test_fused_attention_is_causal_attention(leading: tuple[int, ...], agree: Any) -> None:
    query, key, value = parts = [
        torch.randn(*leading, 9, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)
    ]
    fused = fused_attention(query, key, value)
    mask = torch.ones(9, 9, dtype=torch.bool).tril()
    plain = scaled_dot_product_attention(query, key, value, mask)
    agree(fused, plain, parts)
