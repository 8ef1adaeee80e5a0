"""Losses over whole logits against torch's own."""

import math

import pytest
import torch
from torch.nn import functional

from groundup.errors import DataError
from groundup.nn import cross_entropy, z_loss
from groundup.nn.losses import perplexity

SHAPES = [(), (1,), (7,), (3, 5), (2, 1, 4)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_cross_entropy_is_torchs_in_value_and_gradient(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    torch.manual_seed(0)
    logits = torch.randn(*shape, 11, dtype=dtype, device=device).mul_(3).requires_grad_()
    targets = torch.randint(0, 11, shape, device=device)
    ours = cross_entropy(logits, targets)
    (gradient,) = torch.autograd.grad(ours, logits)

    twin = logits.detach().to(torch.promote_types(dtype, torch.float32)).requires_grad_()
    theirs = functional.cross_entropy(twin.reshape(-1, 11), targets.reshape(-1))
    (expected,) = torch.autograd.grad(theirs, twin)
    assert ours.dtype == twin.dtype
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradient, expected.to(dtype))


@pytest.mark.parametrize("offset", [1000.0, -1000.0, 0.0])
def test_cross_entropy_is_stable_for_logits_of_a_thousand(offset: float) -> None:
    logits = torch.tensor([[1000.0, -1000.0, 0.0], [-1000.0, -1000.0, -1000.0]]) + offset
    logits.requires_grad_()
    targets = torch.tensor([2, 0])
    loss = cross_entropy(logits, targets)
    torch.testing.assert_close(loss, functional.cross_entropy(logits, targets))
    loss.backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_narrow_targets_are_read_as_wide_ones() -> None:
    logits = torch.randn(3, 5)
    targets = torch.tensor([0, 4, 2])
    assert torch.equal(
        cross_entropy(logits, targets.to(torch.int32)), cross_entropy(logits, targets)
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_z_loss_is_the_mean_squared_log_of_the_denominator(shape: tuple[int, ...]) -> None:
    logits = torch.randn(*shape, 9, dtype=torch.float64, requires_grad=True)
    ours = z_loss(logits)
    theirs = torch.logsumexp(logits, dim=-1).square().mean()
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        torch.autograd.grad(ours, logits), torch.autograd.grad(theirs, logits)
    )


def test_perplexity_is_the_exponential_of_the_loss_and_never_an_error() -> None:
    assert [perplexity(loss) for loss in (0.0, 2.0, 1e4)] == [1.0, math.exp(2), math.inf]


@pytest.mark.parametrize(
    ("logits", "targets", "complaint"),
    [
        (torch.zeros(3, 5), torch.zeros(2, dtype=torch.long), r"\(2,\).*\(3, 5\).*shape \(3,\)"),
        (torch.zeros(3, 5), torch.zeros(3, 5, dtype=torch.long), r"\(3, 5\).*shape \(3,\)"),
        (torch.zeros(3, 5), torch.zeros(3), "integer.*float32"),
        (torch.zeros(3, 5), torch.zeros(3, dtype=torch.bool), "integer.*bool"),
        (torch.zeros(0, 5), torch.zeros(0, dtype=torch.long), "targets are empty"),
    ],
)
def test_targets_that_do_not_fit_are_named(
    logits: torch.Tensor, targets: torch.Tensor, complaint: str
) -> None:
    with pytest.raises(DataError, match=complaint):
        cross_entropy(logits, targets)
