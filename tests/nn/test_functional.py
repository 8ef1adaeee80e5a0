"""Activations, softmax and attention against torch's own."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from groundup.nn import gelu, scaled_dot_product_attention, silu, softmax, squared_relu
from groundup.nn.functional import fused_attention

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
) -> None:
    x = (3 * torch.randn(shape)).to(dtype).requires_grad_()
    wide = x.detach().double().requires_grad_()
    out, twin = ours(x), theirs(wide)
    assert out.dtype == dtype
    tolerance = {"atol": 0.03, "rtol": 0.03} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(out, twin.to(dtype), **tolerance)
    (d_x,) = torch.autograd.grad(out, x, torch.ones_like(out))
    (d_wide,) = torch.autograd.grad(twin, wide, torch.ones_like(twin))
    torch.testing.assert_close(d_x, d_wide.to(dtype), **tolerance)


@pytest.mark.parametrize(("ours", "theirs"), ACTIVATIONS, ids=NAMES)
def test_activations_stay_finite_far_out(
    ours: Callable[[Tensor], Tensor], theirs: Callable[[Tensor], Tensor]
) -> None:
    x = torch.tensor([-1e4, -90.0, 0.0, 90.0, 1e4], requires_grad=True)
    out = ours(x)
    torch.testing.assert_close(out, theirs(x))
    (d_x,) = torch.autograd.grad(out.sum(), x)
    assert d_x.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "dim"),
    [((5,), 0), ((5,), -1), ((2, 3, 7), 0), ((2, 3, 7), 1), ((2, 3, 7), -1), ((4, 1), -1)],
)
def test_softmax_equals_torch(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    out, twin = softmax(x, dim), torch.softmax(x, dim)
    tolerance = {"atol": 0.01, "rtol": 0.03} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(out, twin, **tolerance)
    d_out = torch.randn_like(out)
    (ours,) = torch.autograd.grad(out, x, d_out)
    (theirs,) = torch.autograd.grad(twin, x, d_out)
    torch.testing.assert_close(ours, theirs, **tolerance)


def test_softmax_is_stable_for_huge_scores() -> None:
    x = torch.tensor([[1e4, -1e4, 1e4], [-1e4, -1e4, -1e4], [1e4, 1e4 - 1, -1e4]])
    out = softmax(x, dim=-1)
    torch.testing.assert_close(out, torch.softmax(x.double(), dim=-1).float())
    torch.testing.assert_close(out.sum(dim=-1), torch.ones(3))


def test_softmax_does_not_change_when_all_scores_move_together() -> None:
    x = torch.randn(4, 9, dtype=torch.float64)
    torch.testing.assert_close(softmax(x + 1e4, dim=1), softmax(x, dim=1), rtol=1e-10, atol=1e-11)


def test_softmax_gives_nothing_to_minus_infinity() -> None:
    out = softmax(torch.tensor([0.0, -torch.inf, 0.0]), dim=0)
    assert out.tolist() == [0.5, 0.0, 0.5]


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
    leading: tuple[int, ...], mask_shape: tuple[int, ...] | None, dtype: torch.dtype
) -> None:
    query, key, value = parts = [
        torch.randn(*leading, *shape, dtype=dtype, requires_grad=True)
        for shape in ((5, 6), (7, 6), (7, 3))
    ]
    mask = None if mask_shape is None else random_mask(*mask_shape)
    out = scaled_dot_product_attention(query, key, value, mask)
    twin = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    assert out.shape == (*leading, 5, 3)
    torch.testing.assert_close(out, twin)
    d_out = torch.randn_like(out)
    torch.testing.assert_close(
        torch.autograd.grad(out, parts, d_out), torch.autograd.grad(twin, parts, d_out)
    )


def test_a_query_that_may_look_at_one_key_takes_its_value() -> None:
    query, key, value = torch.randn(3, 4, 8), torch.randn(3, 4, 8), torch.randn(3, 4, 8)
    out = scaled_dot_product_attention(query, key, value, torch.eye(4, dtype=torch.bool))
    torch.testing.assert_close(out, value)


def test_forbidden_keys_and_values_get_no_gradient() -> None:
    query, key, value = parts = [torch.randn(2, 3, 4, requires_grad=True) for _ in range(3)]
    mask = torch.tensor([True, True, False]).expand(3, 3)
    scaled_dot_product_attention(query, key, value, mask).sum().backward()
    for part in parts[1:]:
        assert part.grad is not None
        assert not part.grad[:, 2].any()


@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (2, 1, 3)])
def test_fused_attention_is_causal_attention(leading: tuple[int, ...]) -> None:
    query, key, value = parts = [
        torch.randn(*leading, 9, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)
    ]
    fused = fused_attention(query, key, value)
    mask = torch.ones(9, 9, dtype=torch.bool).tril()
    plain = scaled_dot_product_attention(query, key, value, mask)
    torch.testing.assert_close(fused, plain)
    d_out = torch.randn_like(plain)
    torch.testing.assert_close(
        torch.autograd.grad(fused, parts, d_out), torch.autograd.grad(plain, parts, d_out)
    )
