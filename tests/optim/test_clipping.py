"""Clipping against torch's own."""

import pytest
import torch
from torch import Tensor

from groundup.errors import ConfigError
from groundup.optim.clipping import clip_gradients, clip_scale, gradient_norm


def parameters(
    dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> list[Tensor]:
    torch.manual_seed(0)
    made = []
    for shape in [(3, 4), (5,), (), (2, 1, 3)]:
        parameter = torch.randn(shape, dtype=dtype, device=device, requires_grad=True)
        parameter.grad = torch.randn_like(parameter)
        made.append(parameter)
    made.append(torch.randn(2, device=device, requires_grad=True))
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("max_norm", [1e-3, 1.0, 1e3])
def test_clipping_is_torchs(dtype: torch.dtype, max_norm: float, device: torch.device) -> None:
    ours, theirs = parameters(dtype, device), parameters(dtype, device)
    scale = clip_scale(gradient_norm(ours), max_norm)
    before = [one.grad.clone() for one in ours if one.grad is not None]
    norm = clip_gradients(ours, max_norm)
    expected = torch.nn.utils.clip_grad_norm_(theirs, max_norm)
    torch.testing.assert_close(norm, expected)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    assert ours[-1].grad is None
    # The scale is what clipping multiplies by: 1, to the bit, within the bound.
    clipped = [one.grad for one in ours if one.grad is not None]
    assert all(torch.equal(a, b * scale) for a, b in zip(clipped, before, strict=True))
    assert (scale == 1) == (max_norm == 1e3)


def test_mixed_types_count_together() -> None:
    first = torch.zeros(2, dtype=torch.float64)
    first.grad = torch.tensor([3.0, 0.0], dtype=torch.float64)
    second = torch.zeros(1, dtype=torch.bfloat16)
    second.grad = torch.tensor([4.0], dtype=torch.bfloat16)
    norm = clip_gradients([first, second], 1.0)
    assert norm.dtype == torch.float64
    assert norm.item() == 5.0
    assert first.grad[0].item() == pytest.approx(0.6, rel=1e-6)
    assert second.grad.dtype == torch.bfloat16


def test_without_gradients_the_norm_is_zero_and_a_bound_that_is_none_is_named() -> None:
    assert clip_gradients([torch.zeros(3, requires_grad=True)], 1.0).item() == 0.0
    assert gradient_norm(iter([])).item() == 0.0
    for max_norm in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match=f"max_norm.*{max_norm}"):
            clip_gradients(parameters(), max_norm)
