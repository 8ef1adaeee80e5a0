"""Adapters change what a layer computes and nothing of how it is used, saved or merged."""

import torch

from groundup.model import TransformerLM
from groundup.nn.adapters import (
    adapted_state,
    add_adapters,
    merge_adapters,
    with_torch_names,
    without_adapters,
)


def make_model(*, is_tied: bool = False) -> TransformerLM:
    torch.manual_seed(0)
    return TransformerLM(30, 16, 16, 2, 2, 32, tie_embeddings=is_tied)


def adapt(model: TransformerLM) -> None:
    model.requires_grad_(False)
    add_adapters(model.blocks, 3, (model.token_embedding, model.lm_head), [28, 29])


def learn(model: TransformerLM) -> None:
    ids = torch.randint(30, (4, 12))
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], 0.5)
    for _ in range(3):
        optimizer.zero_grad()
        model.loss(ids[:, :-1], ids[:, 1:]).backward()
        optimizer.step()


def test_adapters_begin_as_nothing_and_merge_into_the_same_logits() -> None:
    for is_tied in (False, True):
        model, plain = make_model(is_tied=is_tied), make_model(is_tied=is_tied)
        adapt(model)
        ids = torch.randint(30, (2, 10))
        assert torch.equal(model(ids), plain(ids))
        learn(model)
        assert not torch.allclose(model(ids), plain(ids), atol=1e-3)
        plain.load_state_dict(merge_adapters(adapted_state(model)))
        torch.testing.assert_close(plain(ids), model(ids))


def test_only_adapters_and_chosen_rows_learn() -> None:
    model, before = make_model(), make_model().state_dict()
    adapt(model)
    learn(model)
    state = adapted_state(model)
    for name, value in without_adapters(state).items():
        assert torch.equal(value, before[name]), name
    merged = merge_adapters(state)
    assert torch.equal(merged["lm_head.weight"][:28], before["lm_head.weight"][:28])
    assert not torch.equal(merged["lm_head.weight"][28:], before["lm_head.weight"][28:])
    names = {name.partition(".adapter.")[0] for name in state if ".adapter." in name}
    layers = [f"blocks.{i}.{name}" for i in (0, 1) for name in ("attention", "feed_forward")]
    assert names == {
        *(
            f"{layer}.{part}"
            for layer in layers[::2]
            for part in ("query", "key", "value", "output")
        ),
        *(f"{layer}.{part}" for layer in layers[1::2] for part in ("gate", "up", "down")),
        "token_embedding",
        "lm_head",
    }


def test_a_state_goes_back_into_an_adapted_model_exactly() -> None:
    for is_tied in (False, True):
        model, other = make_model(is_tied=is_tied), make_model(is_tied=is_tied)
        adapt(model)
        learn(model)
        adapt(other)
        other.load_state_dict(with_torch_names(adapted_state(model)))
        for name, value in adapted_state(model).items():
            assert torch.equal(value, adapted_state(other)[name])
        assert (other.lm_head.weight is other.token_embedding.weight) is False
        assert torch.equal(other.lm_head.weight, model.lm_head.weight)


def test_a_state_without_adapters_is_left_as_it_is() -> None:
    state = make_model().state_dict()
    for change in (merge_adapters, with_torch_names, without_adapters):
        changed = change(state)
        assert changed.keys() == state.keys()
        assert all(changed[name] is value for name, value in state.items())
