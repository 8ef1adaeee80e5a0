"""Adapters change what a layer computes, but not how it is used, saved or merged."""

import pytest
import torch

from groundup.model import TransformerLM
from groundup.nn.adapters import (
    adapted_state,
    add_adapters,
    merge_adapters,
    with_torch_names,
)


def make_model(is_tied: bool) -> TransformerLM:
    torch.manual_seed(0)
    return TransformerLM(30, 16, 16, 2, 2, 32, tie_embeddings=is_tied)


def adapt(model: TransformerLM) -> None:
    model.requires_grad_(False)
    add_adapters(model.blocks, 3, (model.token_embedding, model.lm_head), [28, 29])


@pytest.mark.parametrize("is_tied", [False, True])
def test_only_adapters_and_chosen_rows_train_and_they_merge_and_load_exactly(is_tied: bool) -> None:
    model, plain, other = (make_model(is_tied) for _ in range(3))
    before = make_model(is_tied).state_dict()
    for one in (model, other):
        adapt(one)
    ids = torch.randint(30, (4, 12))
    assert torch.equal(model(ids), plain(ids))
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], 0.5)
    for _ in range(3):
        optimizer.zero_grad()
        model.loss(ids[:, :-1], ids[:, 1:]).backward()
        optimizer.step()
    assert not torch.allclose(model(ids), plain(ids), atol=1e-3)

    state = adapted_state(model)
    for name, value in state.items():
        assert ".adapter." in name or torch.equal(value, before[name]), name
    names = {name.partition(".adapter.")[0] for name in state if ".adapter." in name}
    attention = [f"attention.{part}" for part in ("query", "key", "value", "output")]
    inner = [*attention, *(f"feed_forward.{part}" for part in ("gate", "up", "down"))]
    blocks = {f"blocks.{layer}.{part}" for layer in (0, 1) for part in inner}
    assert names == {"token_embedding", "lm_head", *blocks}

    merged = merge_adapters(state)
    assert torch.equal(merged["lm_head.weight"][:28], before["lm_head.weight"][:28])
    assert not torch.equal(merged["lm_head.weight"][28:], before["lm_head.weight"][28:])
    plain.load_state_dict(merged)
    torch.testing.assert_close(plain(ids), model(ids))
    other.load_state_dict(with_torch_names(state))
    for name, value in adapted_state(other).items():
        assert torch.equal(value, state[name])


def test_a_state_without_adapters_is_unchanged() -> None:
    state = make_model(False).state_dict()
    for change in (merge_adapters, with_torch_names):
        changed = change(state)
        assert changed.keys() == state.keys()
        assert all(changed[name] is value for name, value in state.items())
