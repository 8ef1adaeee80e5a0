"""Operations by rule against torch's own count of the products that were made."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from groundup.model import TransformerLM
from groundup.model.config import ModelConfig
from groundup.planner import count_parameters, training_flops_per_token

SHAPE: dict[str, Any] = {
    "vocab_size": 101,
    "context_length": 16,
    "d_model": 32,
    "num_layers": 2,
    "num_heads": 4,
}


@pytest.mark.parametrize(
    "settings",
    [{}, {"tie_embeddings": True}, {"feed_forward": "gelu"}, {"num_kv_heads": 2}],
    ids=str,
)
def test_the_rule_is_what_the_formulas_multiply(settings: dict[str, Any]) -> None:
    config = ModelConfig(**SHAPE, **settings, kernels="reference")
    model = TransformerLM.from_config(config)
    ids = torch.zeros(3, config.context_length, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(ids).sum().backward()
    # Gains are weights that no matrix product sees; the rule counts them like the others.
    gains = 6 * count_parameters(config)["norms"]
    assert counter.get_total_flops() == ids.numel() * (training_flops_per_token(config) - gains)


def test_an_input_embedding_costs_nothing_and_a_tied_one_counts_once() -> None:
    free, tied = ModelConfig(**SHAPE), ModelConfig(**SHAPE, tie_embeddings=True)
    assert training_flops_per_token(free) == training_flops_per_token(tied)


def test_attention_grows_with_the_context() -> None:
    short, long = ModelConfig(**SHAPE), ModelConfig(**{**SHAPE, "context_length": 32})
    assert training_flops_per_token(long) - training_flops_per_token(short) == 12 * 2 * 16 * 32
