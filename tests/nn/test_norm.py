"""Root-mean-square normalization against torch's own."""

import pytest
import torch
from torch.nn import functional

from groundup.nn import RMSNorm
from groundup.nn.linear import Kernels


def with_gains(
    d_model: int, dtype: torch.dtype, eps: float = 1e-5, kernels: Kernels = "fused"
) -> RMSNorm:
    layer = RMSNorm(d_model, eps, dtype=dtype, kernels=kernels)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(d_model))
    return layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1,), (5,), (2, 3, 64), (2, 1, 4, 7), (0, 8)])
@pytest.mark.parametrize("eps", [1e-5, 1e-2])
@pytest.mark.parametrize("kernels", ["fused", "reference"])
def test_equals_torch_in_values_and_gradients(
    shape: tuple[int, ...], eps: float, dtype: torch.dtype, kernels: Kernels
) -> None:
    layer = with_gains(shape[-1], dtype, eps, kernels)
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    out = layer(x)
    twin = functional.rms_norm(x, shape[-1:], layer.weight, eps)
    torch.testing.assert_close(out, twin)
    d_out = torch.randn(shape, dtype=dtype)
    torch.testing.assert_close(
        torch.autograd.grad(out, [x, layer.weight], d_out),
        torch.autograd.grad(twin, [x, layer.weight], d_out),
    )


@pytest.mark.parametrize("gain_dtype", [torch.float32, torch.bfloat16])
def test_half_precision_is_computed_in_float32(gain_dtype: torch.dtype) -> None:
    layer = with_gains(48, gain_dtype)
    x = (3 * torch.randn(7, 48)).bfloat16()
    out = layer(x)
    wide = functional.rms_norm(x.float(), (48,), layer.weight.float(), layer.eps)
    assert out.dtype == torch.bfloat16
    # Sums in another order differ in float32's last bits, which rarely turn a rounding; in bfloat16
    # a third of the values would be others.
    torch.testing.assert_close(out, wide.bfloat16(), rtol=2**-7, atol=0)
    assert (out == wide.bfloat16()).float().mean() > 0.98


@pytest.mark.parametrize("gain_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernels", ["fused", "reference"])
def test_gradients_in_half_precision_are_near_those_of_torch(
    gain_dtype: torch.dtype, kernels: Kernels
) -> None:
    layer = with_gains(48, gain_dtype, kernels=kernels)
    x = (3 * torch.randn(7, 48)).bfloat16().requires_grad_()
    d_out = torch.randn_like(x)
    twin = functional.rms_norm(x.double(), (48,), layer.weight.double(), layer.eps)
    ours = torch.autograd.grad(layer(x), [x, layer.weight], d_out)
    theirs = torch.autograd.grad(twin, [x, layer.weight], d_out.double())
    for one, other in zip(ours, theirs, strict=True):
        assert (one.double() - other.double()).norm() < 0.03 * other.double().norm()


def test_squares_beyond_half_precision_do_not_overflow() -> None:
    layer = RMSNorm(16, dtype=torch.float16)
    x = torch.full((2, 16), 6e4, dtype=torch.float16, requires_grad=True)
    out = layer(x)
    torch.testing.assert_close(out, torch.ones_like(out))
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("kernels", ["fused", "reference"])
def test_nothing_stays_nothing_and_has_a_gradient(kernels: Kernels) -> None:
    layer = RMSNorm(4, kernels=kernels)
    x = torch.zeros(3, 4, requires_grad=True)
    out = layer(x)
    assert not out.any()
    out.sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, layer.eps**-0.5))


def test_gains_begin_at_one_and_go_back_to_it() -> None:
    layer = RMSNorm(5, 1e-5, torch.device("cpu"), torch.float64)
    assert torch.equal(layer.weight, torch.ones(5, dtype=torch.float64))
    with torch.no_grad():
        layer.weight.mul_(3)
    layer.reset_parameters()
    assert torch.equal(layer.weight, torch.ones(5, dtype=torch.float64))
