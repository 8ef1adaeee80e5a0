"""Operations by formula and by rule against torch's own count of the products that were made."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from groundup.model import TransformerLM
from groundup.model.config import ModelConfig
from groundup.optim.muon import Muon
from groundup.planner import count_parameters, forward_flops, step_flops, training_flops_per_token
from groundup.planner.flops import update_flops

SHAPE: dict[str, Any] = {
    "vocab_size": 101,
    "context_length": 16,
    "d_model": 32,
    "num_layers": 2,
    "num_heads": 4,
}
VARIANTS: list[dict[str, Any]] = [
    {},
    {"tie_embeddings": True},
    {"feed_forward": "silu"},
    {"feed_forward": "gelu"},
    {"feed_forward": "relu2"},
    {"norm": "post"},
    {"norm": "none", "positions": "none"},
    {"d_ff": 40, "qk_norm": True},
    {"num_kv_heads": 2},
    {"num_kv_heads": 1, "feed_forward": "gelu", "tie_embeddings": True},
]


def count(config: ModelConfig, num_tokens: int) -> FlopCounterMode:
    model = TransformerLM.from_config(config)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(torch.zeros(1, num_tokens, dtype=torch.long))
    return counter


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
@pytest.mark.parametrize("num_tokens", [16, 7])
def test_a_forward_pass_is_what_torch_counts(settings: dict[str, Any], num_tokens: int) -> None:
    config = ModelConfig(**SHAPE, **settings, kernels="reference")
    counter = count(config, num_tokens)
    assert counter.get_total_flops() == sum(forward_flops(config, num_tokens).values())


def test_every_component_is_what_torch_counts_in_its_modules() -> None:
    config = ModelConfig(**SHAPE, kernels="reference")
    counts = count(config, 16).get_flop_counts()

    def counted(*ends: str) -> int:
        return sum(
            sum(flops.values()) for name, flops in counts.items() if name.endswith(tuple(ends))
        )

    parts = forward_flops(config)
    projections = counted(".query", ".key", ".value", ".output")
    assert parts["projections"] == projections
    assert parts["attention"] == counted(".attention") - projections
    assert parts["feed_forward"] == counted(".feed_forward")
    assert parts["output_head"] == counted(".lm_head")


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_a_step_is_three_times_a_forward_pass(settings: dict[str, Any]) -> None:
    config = ModelConfig(**SHAPE, **settings, kernels="reference")
    model = TransformerLM.from_config(config)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(3, config.context_length, dtype=torch.long)).sum().backward()
    assert counter.get_total_flops() == step_flops(config, batch_size=3)


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
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


@pytest.mark.parametrize("iterations", [5, 2])
@pytest.mark.parametrize("settings", [{}, {"num_kv_heads": 2}], ids=str)
def test_an_update_by_muon_has_the_products_that_torch_counts(
    settings: dict[str, Any], iterations: int
) -> None:
    config = ModelConfig(**SHAPE, **settings)
    matrices = [
        one for one in TransformerLM.from_config(config).blocks.parameters() if one.ndim == 2
    ]
    optimizer = Muon(matrices, lr=0.01, num_orthogonalization_steps=iterations)
    for matrix in matrices:
        matrix.grad = torch.ones_like(matrix)
    with FlopCounterMode(display=False) as counter:
        optimizer.step()
    num_in_blocks = sum(matrix.numel() for matrix in matrices)
    num_others = sum(count_parameters(config).values()) - num_in_blocks
    elementwise = 9 * num_in_blocks + 14 * num_others
    assert update_flops(config, "muon", iterations) == counter.get_total_flops() + elementwise
