"""Every model setting trains: weights have the expected shapes, the loss is that of the logits,
every parameter gets a gradient, and gradient steps lower the loss."""

import itertools
from typing import Any

import pytest
import torch
from torch.nn import functional

from groundup.model.transformer import weight_shapes

from .conftest import small

ONE_PROCESS: list[dict[str, Any]] = [
    {"feed_forward": "silu", "norm_eps": 1e-3},
    {"feed_forward": "gelu", "num_kv_heads": 1},
    {"d_ff": None, "rope_theta": 500_000.0},
    {"num_layers": 0},
    {"initialization": "gpt2"},
    {"zero_outputs": True},
    {"gated_attention": True},
    {"value_embeddings": "projection", "num_kv_heads": 2},
]
TOGETHER: list[dict[str, Any]] = [
    {"norm": norm, "feed_forward": kind, "qk_norm": True, "num_kv_heads": 2, "positions": positions}
    | {"tie_embeddings": tied}
    for norm, (kind, positions, tied) in itertools.product(
        ["pre", "post", "none"], [("swiglu", "rope", True), ("relu2", "none", False)]
    )
]


@pytest.mark.parametrize("settings", ONE_PROCESS + TOGETHER, ids=str)
def test_every_setting_trains(settings: dict[str, Any]) -> None:
    model = small(**settings)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert shapes == weight_shapes(model.config)
    # Each id at least once, so that every row of the embedding gets a gradient.
    ids = torch.cat([torch.randperm(61), torch.randint(61, (3,))]).view(4, 16)
    targets = ids.roll(-1, dims=1)
    names, weights = zip(*model.named_parameters(), strict=True)
    losses = []
    for step in range(4):
        loss = model.loss(ids, targets)
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, weights)
        for name, gradient in zip(names, gradients, strict=True):
            assert gradient.isfinite().all(), name
            # Parameters behind an initial zero get gradients from the second step on.
            begins_at_zero = "value_embeddings" in name or "value_sum" in name
            is_behind_zero = step == 0 and (model.config.zero_outputs or begins_at_zero)
            assert gradient.any() or is_behind_zero, name
        length = torch.stack([gradient.norm() for gradient in gradients]).norm()
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight -= 0.3 * gradient / length
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("later_weight", [None, 0.3])
@pytest.mark.parametrize("z_loss", [0.0, 0.1])
@pytest.mark.parametrize(("shape", "tied"), [((7,), False), ((3, 13), True), ((2, 2, 1), False)])
def test_the_loss_is_that_of_the_logits(
    shape: tuple[int, ...], tied: bool, z_loss: float, later_weight: float | None, reduction: Any
) -> None:
    """Multi-token prediction affects the gradients only."""
    model = small(dtype=torch.float64, tie_embeddings=tied)
    with torch.no_grad():
        # Confident predictions, so that no two losses are equal by chance.
        model.lm_head.weight.mul_(4)
    ids, targets = torch.randint(61, (2, *shape)).unbind(0)
    logits = model(ids)
    losses = functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum")
    losses = losses + z_loss * torch.logsumexp(logits, dim=-1).square().sum()
    later = functional.cross_entropy(
        logits[..., :-1, :].flatten(0, -2), targets[..., 1:].flatten(), reduction="sum"
    )
    divisor = targets.numel() if reduction == "mean" else 1
    weight = None if later_weight is None else torch.tensor(later_weight)
    ours = model.loss(ids, targets, z_loss, reduction, weight)
    torch.testing.assert_close(ours, losses / divisor)
    weights = list(model.parameters())
    gradients = torch.autograd.grad((losses + (later_weight or 0) * later) / divisor, weights)
    torch.testing.assert_close(torch.autograd.grad(ours, weights), gradients)
