"""The planner's closed forms against the real model's parameters and torch's count of its FLOPs."""

import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from groundup.model import TransformerLM
from groundup.model.config import PRESETS, ModelConfig
from groundup.nn import kernels
from groundup.planner import count_parameters, forward_flops, step_flops, training_flops_per_token
from groundup.planner import parameters as planned
from groundup.planner.parameters import flop_fractions, optimal_parameters, optimal_tokens

SMALL: dict[str, Any] = {"vocab_size": 97, "context_length": 8, "d_model": 24, "num_layers": 3}
SMALL |= {"num_heads": 4}
ABLATIONS: dict[str, list[Any]] = {
    "norm": ["pre", "post", "none"],
    "feed_forward": ["swiglu", "silu"],
    "tie_embeddings": [False, True],
    "qk_norm": [False, True],
    "num_kv_heads": [None, 2, 1],
}
SETTINGS: list[dict[str, Any]] = [
    *(dict(zip(ABLATIONS, one, strict=True)) for one in itertools.product(*ABLATIONS.values())),
    {"num_layers": 0},
    {"num_layers": 1, "feed_forward": "gelu"},
    {"d_ff": 17, "feed_forward": "relu2"},
    {"positions": "none", "num_heads": 1},
    {"gated_attention": True},
    {"value_embeddings": "projection", "num_kv_heads": 2},
]


def part_of(name: str) -> str:
    """Return the planner's name for the part that a parameter belongs to."""
    if "head_gate" in name:
        return "gated_attention"
    if "value_sum" in name or name.startswith("value_embeddings"):
        return "value_embeddings"
    if "norm" in name:
        return "norms"
    return name.split(".")[2 if name.startswith("blocks.") else 0]


@pytest.mark.parametrize(
    "config", [*(ModelConfig(**(SMALL | one)) for one in SETTINGS), *PRESETS.values()], ids=str
)
def test_counts_match_the_model(config: ModelConfig) -> None:
    # Without memory: only shapes matter.
    with torch.device("meta"):
        model = TransformerLM.from_config(config)
    counted = Counter[str]()
    for name, parameter in model.named_parameters():
        counted[part_of(name)] += parameter.numel()
    found = count_parameters(config)
    assert {name: count for name, count in found.items() if count} == counted
    assert {"token_embedding", "attention", "feed_forward", "norms", "lm_head"} <= found.keys()


def test_custom_parts_are_counted_as_built() -> None:
    config = ModelConfig(**SMALL, qk_norm=True, gated_attention=True, value_embeddings="projection")
    for part, shapes in planned._find_matrices(config).items():
        assert sorted(shapes) == sorted(planned.block_matrices(config)[part])


SHAPE: dict[str, Any] = {"vocab_size": 101, "context_length": 16, "d_model": 32, "num_layers": 2}
SHAPE |= {"num_heads": 4}
VARIANTS: list[dict[str, Any]] = [
    {},
    {"tie_embeddings": True},
    {"feed_forward": "relu2", "norm": "post"},
    {"norm": "none", "positions": "none"},
    {"d_ff": 40, "qk_norm": True},
    {"num_kv_heads": 2},
    {"gated_attention": True},
    {"num_kv_heads": 1, "feed_forward": "gelu", "tie_embeddings": True},
]


def count(config: ModelConfig, num_tokens: int) -> FlopCounterMode:
    model = TransformerLM.from_config(config)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad(), kernels.reference():
        model(torch.zeros(1, num_tokens, dtype=torch.long))
    return counter


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_step_flops_match_torch_and_the_per_token_rule(
    settings: dict[str, Any],
) -> None:
    config = ModelConfig(**SHAPE, **settings)
    model = TransformerLM.from_config(config)
    ids = torch.zeros(3, config.context_length, dtype=torch.long)
    with FlopCounterMode(display=False) as counter, kernels.reference():
        model(ids).sum().backward()
    assert counter.get_total_flops() == step_flops(config, batch_size=3)
    assert count(config, 7).get_total_flops() == sum(forward_flops(config, 7).values())
    # Norm gains are in no matmul, but the rule counts them like other parameters.
    gains = 6 * count_parameters(config)["norms"]
    assert counter.get_total_flops() == ids.numel() * (training_flops_per_token(config) - gains)


XL = PRESETS["gpt2-xl"]


def test_the_fraction_of_attention_grows_with_the_context() -> None:
    short, long = flop_fractions(XL), flop_fractions(XL, 16_384)
    assert (short["attention"], long["attention"]) == (0.0714, 0.5515)
    assert sum(long.values()) == pytest.approx(1.0, abs=1e-3)


def test_twenty_tokens_per_parameter_use_the_compute() -> None:
    assert optimal_tokens(70) == 1_400
    num_parameters = optimal_parameters(1e21)
    assert 6 * num_parameters * optimal_tokens(num_parameters) == pytest.approx(1e21)
