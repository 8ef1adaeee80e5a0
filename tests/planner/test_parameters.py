"""The planner's closed forms against the real model's own numbers."""

import itertools
from collections import Counter
from typing import Any

import pytest
import torch

from groundup.model import TransformerLM
from groundup.model.config import PRESETS, ModelConfig
from groundup.planner import count_parameters

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
    """The planner's part that a parameter of the model belongs to."""
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
def test_the_count_is_the_models_own(config: ModelConfig) -> None:
    # Without memory: only shapes matter here.
    with torch.device("meta"):
        model = TransformerLM.from_config(config)
    counted = Counter[str]()
    for name, parameter in model.named_parameters():
        counted[part_of(name)] += parameter.numel()
    found = count_parameters(config)
    assert {name: count for name, count in found.items() if count} == counted
    assert {"token_embedding", "attention", "feed_forward", "norms", "lm_head"} <= found.keys()
