"""Every setting of the model trains: finite loss, and a gradient for every parameter."""

import itertools
from typing import Any

import pytest
import torch

from groundup.model import TransformerLM

ALONE: list[dict[str, Any]] = [
    {"norm": "post"},
    {"norm": "none"},
    {"positions": "none"},
    {"feed_forward": "silu"},
    {"feed_forward": "gelu"},
    {"feed_forward": "relu2"},
    {"tie_embeddings": True},
    {"qk_norm": True},
    {"num_kv_heads": 2},
    {"num_kv_heads": 1},
    {"logit_soft_cap": 15.0},
    {"norm_eps": 1e-3},
    {"rope_theta": 500_000.0},
    {"d_ff": None},
    {"num_layers": 0},
    {"kernels": "reference"},
]
TOGETHER: list[dict[str, Any]] = [
    {"norm": norm, "feed_forward": kind, "qk_norm": True, "num_kv_heads": 2, "positions": positions}
    | {"tie_embeddings": tied, "logit_soft_cap": 15.0}
    for norm, (kind, positions, tied) in itertools.product(
        ["pre", "post", "none"], [("swiglu", "rope", True), ("relu2", "none", False)]
    )
]


def model_with(settings: dict[str, Any]) -> TransformerLM:
    shape = {"vocab_size": 61, "context_length": 16, "d_model": 24, "num_layers": 2}
    return TransformerLM(**{**shape, "num_heads": 4, "d_ff": 40, **settings})


@pytest.mark.parametrize("settings", ALONE + TOGETHER, ids=str)
def test_every_setting_gives_finite_loss_and_gradients_everywhere(settings: dict[str, Any]) -> None:
    model = model_with(settings)
    # Each id at least once, so that no row of the embedding is left out.
    ids = torch.cat([torch.randperm(61), torch.randint(61, (3,))]).view(4, 16)
    loss = model.loss(ids, ids.roll(-1, dims=1))
    assert loss.isfinite()
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@pytest.mark.parametrize("settings", ALONE + TOGETHER, ids=str)
def test_every_setting_lowers_the_loss_of_one_batch(settings: dict[str, Any]) -> None:
    model = model_with(settings)
    ids, targets = torch.randint(61, (2, 4, 16)).unbind(0)
    weights = list(model.parameters())
    losses = []
    for _ in range(4):
        loss = model.loss(ids, targets)
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, weights)
        length = torch.stack([gradient.norm() for gradient in gradients]).norm()
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight -= 0.5 * gradient / length
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize(
    ("settings", "come", "go"),
    [
        ({"qk_norm": True}, {"attention.query_norm", "attention.key_norm"}, set()),
        ({"feed_forward": "gelu"}, set(), {"feed_forward.gate"}),
        ({"norm": "none"}, set(), {"attention_norm", "feed_forward_norm"}),
        ({"norm": "post"}, set(), set()),
    ],
    # The order of a set is not the same in every process, and names of tests have to be.
    ids=["query/key norm", "no gate", "no norm", "post-norm"],
)
def test_the_settings_choose_the_weights(
    settings: dict[str, Any], come: set[str], go: set[str]
) -> None:
    def names(model: TransformerLM) -> set[str]:
        return {name.removesuffix(".weight") for name in model.blocks[1].state_dict()}

    plain, changed = model_with({}), model_with(settings)
    assert names(changed) - names(plain) == come
    assert names(plain) - names(changed) == go
    # A norm before the output belongs to pre-norm alone; post-norm blocks end in their own.
    assert ("final_norm.weight" in changed.state_dict()) == (changed.config.norm == "pre")


def test_grouped_heads_reach_the_blocks() -> None:
    for block in model_with({"num_kv_heads": 2}).blocks:
        assert block.attention.key.weight.shape == (12, 24)
        assert block.attention.value.weight.shape == (12, 24)


def test_the_settings_change_what_the_model_says() -> None:
    """A setting that was read but not obeyed would leave the logits as they are."""
    ids = torch.randint(61, (2, 9))
    plain = model_with({})
    state = plain.state_dict()
    for settings in ({"positions": "none"}, {"logit_soft_cap": 0.1}, {"norm_eps": 0.1}):
        changed = model_with(settings)
        changed.load_state_dict(state)
        assert not torch.allclose(changed(ids), plain(ids)), settings
    without_norm = model_with({"norm": "none"})
    without_norm.load_state_dict(state, strict=False)
    assert not torch.allclose(without_norm(ids), plain(ids))
