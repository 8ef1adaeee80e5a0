"""The small layers against torch's functions, and their initialization."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from groundup.nn import Embedding, Linear, RMSNorm, SwiGLU
from groundup.nn.initialization import truncated_normal_
from groundup.nn.limits import FEED_FORWARDS
from groundup.nn.linear import packed_linear

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
LEADING = [(), (2, 1, 4)]
PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "relu2": lambda x: functional.relu(x).square(),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("leading", [*LEADING, (0,)])
def test_linear_is_a_matmul(leading: tuple[int, ...], dtype: torch.dtype, agree: Any) -> None:
    layer = Linear(7, 5, dtype=dtype)
    x = torch.randn(*leading, 7, dtype=dtype, requires_grad=True)
    agree(layer(x), functional.linear(x, layer.weight), [x, layer.weight])


def test_packed_linear_concatenates_the_layers(agree: Any) -> None:
    layers = [Linear(6, width, dtype=torch.float64) for width in (6, 2, 1)]
    x = torch.randn(2, 1, 4, 6, dtype=torch.float64, requires_grad=True)
    separate = torch.cat([layer(x) for layer in layers], dim=-1)
    agree(packed_linear(x, layers), separate, [x, *(layer.weight for layer in layers)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (4,), (3, 1, 2), (0,)])
def test_embedding_selects_rows_and_sums_their_gradients(
    shape: tuple[int, ...], dtype: torch.dtype, agree: Any
) -> None:
    layer = Embedding(5, 3, dtype=dtype)
    ids = torch.randint(5, shape)
    atol = 0.1 if dtype == torch.bfloat16 else 1e-6
    agree(layer(ids), functional.embedding(ids, layer.weight), [layer.weight], 0, atol)
    assert torch.equal(layer(ids.int()), layer(ids))


def test_arguments_and_names_are_those_of_the_contract() -> None:
    made = torch.device("cpu"), torch.float64
    for layer, shapes in (
        (Linear(3, 4, *made), {"weight": (4, 3)}),
        (Embedding(3, 4, *made), {"weight": (3, 4)}),
        (RMSNorm(3, 1e-5, *made), {"weight": (3,)}),
        (SwiGLU(4, 6, *made), {"gate.weight": (6, 4), "up.weight": (6, 4), "down.weight": (4, 6)}),
    ):
        assert {name: tuple(value.shape) for name, value in layer.state_dict().items()} == shapes
        assert all(one.dtype == torch.float64 and one.requires_grad for one in layer.parameters())


def norm_with_gains(d_model: int, dtype: torch.dtype, eps: float = 1e-5) -> RMSNorm:
    layer = RMSNorm(d_model, eps, dtype=dtype)
    torch.nn.init.normal_(layer.weight)
    return layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1,), (5,), (2, 3, 64), (2, 1, 4, 7), (0, 8)])
@pytest.mark.parametrize("eps", [1e-5, 1e-2])
@pytest.mark.usefixtures("form")
def test_norm_equals_torch(
    shape: tuple[int, ...], eps: float, dtype: torch.dtype, agree: Any
) -> None:
    layer = norm_with_gains(shape[-1], dtype, eps)
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    twin = functional.rms_norm(x, shape[-1:], layer.weight, eps)
    agree(layer(x), twin, [x, layer.weight])


@pytest.mark.parametrize("gain_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("form")
def test_norm_in_half_precision_is_computed_in_float32(gain_dtype: torch.dtype, agree: Any) -> None:
    layer = norm_with_gains(48, gain_dtype)
    x = (3 * torch.randn(7, 48)).bfloat16().requires_grad_()
    out = layer(x)
    wide = functional.rms_norm(x.double(), (48,), layer.weight.double(), layer.eps)
    assert out.dtype == torch.bfloat16
    agree(out, wide, [x, layer.weight], relative=0.03)
    # Another order of summation changes the last bits of float32, which rarely changes the rounded
    # result; computed in bfloat16, a third of the values would differ.
    assert (out == wide.bfloat16()).float().mean() > 0.98
    # Squares of such values overflow in half precision.
    large = torch.full((2, 48), 6e4, dtype=torch.float16)
    assert RMSNorm(48, dtype=torch.float16)(large).allclose(torch.ones((), dtype=torch.float16))


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("leading", LEADING)
@pytest.mark.parametrize("kind", ["swiglu", *PLAIN])
def test_feed_forward_equals_its_formula(
    kind: Any, leading: tuple[int, ...], dtype: torch.dtype, agree: Any
) -> None:
    is_gated = kind == "swiglu"
    layer = FEED_FORWARDS[kind]()(64, 91, dtype=dtype)
    x = (6 * torch.randn(*leading, 64, dtype=dtype)).requires_grad_()
    weights = {name: weight.double() for name, weight in layer.named_parameters()}
    inner = functional.linear(x.double(), weights["up.weight"])
    if is_gated:
        inner = inner * functional.silu(functional.linear(x.double(), weights["gate.weight"]))
    else:
        inner = PLAIN[kind](inner)
    out = layer(x)
    assert out.dtype == dtype
    relative = 0.03 if dtype == torch.bfloat16 else 1e-6
    expected = functional.linear(inner, weights["down.weight"])
    agree(out, expected, [x, *layer.parameters()], relative=relative)


# Standard deviation of a standard normal distribution truncated at three sigma.
TRUNCATED = math.sqrt(1 - 6 * math.exp(-4.5) / math.sqrt(2 * math.pi) / math.erf(3 / math.sqrt(2)))


def assert_truncated_normal(weight: Tensor, std: float) -> None:
    values = weight.detach().double().flatten()
    rounding = 1 + torch.finfo(weight.dtype).eps
    assert 2.9 * std < values.abs().max() <= 3 * std * rounding
    assert abs(values.mean()) < 0.01 * std
    assert values.std().item() == pytest.approx(TRUNCATED * std, rel=0.01)
    # Kolmogorov-Smirnov distance to the truncated normal distribution.
    ordered = values.sort().values / std
    expected = 0.5 + 0.5 * torch.erf(ordered / math.sqrt(2)) / math.erf(3 / math.sqrt(2))
    ranks = (torch.arange(len(ordered)) + 0.5) / len(ordered)
    assert (ranks - expected).abs().max().item() < 0.01
    # Clipping would make values pile up at the limit.
    assert (values.abs() >= 2.99 * std).double().mean() < 5e-4


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
def test_initialization_follows_the_contract(dtype: torch.dtype) -> None:
    weight = truncated_normal_(torch.empty(400, 500, dtype=dtype), std=0.02, limit=0.06)
    assert_truncated_normal(weight, 0.02)
    assert_truncated_normal(Linear(300, 500, dtype=dtype).weight, math.sqrt(2 / 800))
    assert_truncated_normal(Embedding(400, 500, dtype=dtype).weight, 1.0)
