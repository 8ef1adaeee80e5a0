"""Attention weights to look at: those that the model's own forward mixes values by."""

from typing import Any

import pytest
import torch

from groundup import TransformerLM
from groundup.nn.functional import starts_of_sequences

SIZES: dict[str, Any] = {"vocab_size": 50, "context_length": 12, "d_model": 32, "num_layers": 2}
SIZES["num_heads"] = 4
CHANGES: list[dict[str, Any]] = [
    {},
    {"qk_norm": True},
    {"num_kv_heads": 2},
    {"document_separator": 7},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_values_mixed_by_them_are_what_the_layer_gives(changes: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = TransformerLM(**SIZES, **changes)
    ids = torch.randint(50, (3, 9))
    ids[0, 4] = ids[1, 7] = 7
    weights = model.attention_weights(ids)
    assert weights.shape == (2, 3, 4, 9, 9)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 4, 9))
    assert torch.equal(weights, weights.tril())
    block = model.blocks[0]
    x = block.attention_norm(model.embed(ids))  # type: ignore[operator]
    layer = block.attention
    value = layer.value(x).unflatten(-1, (layer.num_kv_heads, 8)).transpose(1, 2)  # type: ignore
    value = value.repeat_interleave(4 // layer.num_kv_heads, dim=1)  # type: ignore
    mixed = (weights[0] @ value).transpose(1, 2).flatten(-2)
    starts = starts_of_sequences(ids == 7) if changes.get("document_separator") else None
    torch.testing.assert_close(layer.output(mixed), layer(x, starts=starts))  # type: ignore


def test_they_are_there_for_a_compiled_model_that_has_run() -> None:
    model, ids = TransformerLM(**SIZES), torch.arange(5)
    expected = model.attention_weights(ids)
    model.hidden = torch.compile(model.hidden, backend="eager")  # type: ignore[method-assign]
    model(ids)
    torch.testing.assert_close(model.attention_weights(ids), expected)
