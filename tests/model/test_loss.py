"""The model's own loss, which never holds all logits, against the loss of all its logits."""

from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from groundup.model import TransformerLM
from groundup.nn.losses import cross_entropy


def model_with(**settings: Any) -> TransformerLM:
    model = TransformerLM(61, 16, 24, 2, 4, 40, 1e4, **settings)
    with torch.no_grad():
        # Predictions that are sure of themselves, so that no two losses are equal by chance.
        model.lm_head.weight.mul_(4)
    return model


def grad(model: TransformerLM, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(7,), (3, 13), (2, 2, 5), (4, 1)])
def test_is_the_cross_entropy_of_the_logits(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    model = model_with(dtype=dtype)
    ids, targets = torch.randint(61, (2, *shape)).unbind(0)
    ours, theirs = model.loss(ids, targets), cross_entropy(model(ids), targets)
    assert ours.shape == ()
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(grad(model, ours), grad(model, theirs), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("z_loss", [0.0, 0.1])
@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("tie_embeddings", [False, True])
def test_every_option_equals_its_formula(
    tie_embeddings: bool, cap: float | None, z_loss: float, reduction: Literal["mean", "sum"]
) -> None:
    model = model_with(dtype=torch.float64, logit_soft_cap=cap, tie_embeddings=tie_embeddings)
    ids, targets = torch.randint(61, (2, 3, 13)).unbind(0)
    ours = model.loss(ids, targets, z_loss=z_loss, reduction=reduction)
    logits = model(ids).flatten(0, 1)
    log_total = torch.logsumexp(logits, dim=-1)
    losses = functional.cross_entropy(logits, targets.flatten(), reduction="none")
    losses = losses + z_loss * log_total.square()
    theirs = losses.mean() if reduction == "mean" else losses.sum()
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(grad(model, ours), grad(model, theirs))


def test_the_sum_over_parts_is_the_sum_over_all() -> None:
    model = model_with()
    ids, targets = torch.randint(61, (2, 4, 13)).unbind(0)
    whole = model.loss(ids, targets, reduction="sum")
    parts = [model.loss(ids[n], targets[n], reduction="sum") for n in range(4)]
    torch.testing.assert_close(sum(parts), whole)
    torch.testing.assert_close(whole / targets.numel(), model.loss(ids, targets))


def test_without_gradients_the_loss_is_the_same() -> None:
    model = model_with()
    ids = torch.randint(61, (2, 9))
    with torch.no_grad():
        quiet = model.loss(ids, ids)
    assert not quiet.requires_grad
    torch.testing.assert_close(quiet, model.loss(ids, ids).detach())
