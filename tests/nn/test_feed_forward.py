"""The feed-forward layers against plain torch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from groundup.errors import ConfigError
from groundup.nn import FeedForward, SwiGLU
from groundup.nn.linear import Kernels

LEADING = [(), (3,), (2, 5), (2, 1, 3)]


def gated_twin(layer: SwiGLU, x: Tensor) -> Tensor:
    gate, up, down = (part.weight.double() for part in (layer.gate, layer.up, layer.down))
    wide = x.double()
    inner = functional.silu(functional.linear(wide, gate)) * functional.linear(wide, up)
    return functional.linear(inner, down)


@pytest.mark.parametrize("kernels", ["fused", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("leading", LEADING)
def test_swiglu_is_its_formula(
    leading: tuple[int, ...], dtype: torch.dtype, kernels: Kernels
) -> None:
    layer = SwiGLU(10, 13, dtype=dtype, kernels=kernels)
    weights = [layer.gate.weight, layer.up.weight, layer.down.weight]
    x = torch.randn(*leading, 10, dtype=dtype, requires_grad=True)
    out, expected = layer(x), gated_twin(layer, x)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6)
    d_out = torch.randn_like(out)
    torch.testing.assert_close(
        torch.autograd.grad(out, [x, *weights], d_out),
        torch.autograd.grad(expected, [x, *weights], d_out.double()),
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize("kernels", ["fused", "reference"])
def test_swiglu_in_half_precision_is_near_its_formula(kernels: Kernels) -> None:
    layer = SwiGLU(64, 96, dtype=torch.bfloat16, kernels=kernels)
    x = torch.randn(5, 64, dtype=torch.bfloat16)
    expected = gated_twin(layer, x)
    assert (layer(x).double() - expected).norm() < 0.02 * expected.norm()


@pytest.mark.parametrize("kernels", ["fused", "reference"])
def test_gradients_of_swiglu_in_half_precision_are_near_those_of_its_formula(
    kernels: Kernels,
) -> None:
    layer = SwiGLU(64, 96, dtype=torch.bfloat16, kernels=kernels)
    x = torch.randn(5, 64, dtype=torch.bfloat16, requires_grad=True)
    d_out = torch.randn_like(x)
    places = [x, *layer.parameters()]
    ours = torch.autograd.grad(layer(x), places, d_out)
    theirs = torch.autograd.grad(gated_twin(layer, x), places, d_out.double())
    for one, other in zip(ours, theirs, strict=True):
        assert (one.double() - other.double()).norm() < 0.03 * other.double().norm()


def test_swiglu_takes_device_and_type_in_third_and_fourth_place() -> None:
    layer = SwiGLU(4, 6, torch.device("cpu"), torch.float64)
    shapes = {name: tuple(value.shape) for name, value in layer.state_dict().items()}
    assert shapes == {"gate.weight": (6, 4), "up.weight": (6, 4), "down.weight": (4, 6)}
    assert {parameter.dtype for parameter in layer.parameters()} == {torch.float64}


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("silu", functional.silu),
        ("gelu", functional.gelu),
        ("relu2", lambda x: functional.relu(x).square()),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("leading", LEADING)
def test_plain_kinds_are_their_formula(
    activation: str,
    function: Callable[[Tensor], Tensor],
    leading: tuple[int, ...],
    dtype: torch.dtype,
) -> None:
    layer = FeedForward(10, 13, activation, dtype=dtype)
    weights = [layer.up.weight, layer.down.weight]
    x = torch.randn(*leading, 10, dtype=dtype, requires_grad=True)
    out = layer(x)
    expected = functional.linear(function(functional.linear(x, weights[0])), weights[1])
    torch.testing.assert_close(out, expected)
    d_out = torch.randn_like(out)
    torch.testing.assert_close(
        torch.autograd.grad(out, [x, *weights], d_out),
        torch.autograd.grad(expected, [x, *weights], d_out),
        rtol=1e-5,
        atol=1e-5,
    )


def test_an_unknown_activation_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'glu'.* did you mean gelu"):
        FeedForward(4, 6, "glu")
