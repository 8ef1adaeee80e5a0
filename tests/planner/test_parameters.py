"""The planner's closed forms against the real model's own numbers."""

import itertools
from typing import Any

import pytest
import torch

from groundup.model import TransformerLM
from groundup.model.config import PRESETS, ModelConfig
from groundup.planner import count_parameters

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "context_length": 8,
    "d_model": 24,
    "num_layers": 3,
    "num_heads": 4,
}
ABLATIONS: dict[str, list[Any]] = {
    "norm": ["pre", "post", "none"],
    "feed_forward": ["swiglu", "silu", "gelu", "relu2"],
    "tie_embeddings": [False, True],
    "qk_norm": [False, True],
    "num_kv_heads": [None, 2, 1],
}
EVERY_ABLATION = [
    dict(zip(ABLATIONS, values, strict=True)) for values in itertools.product(*ABLATIONS.values())
]
ODD_SHAPES: list[dict[str, Any]] = [
    {"num_layers": 0},
    {"num_layers": 1},
    {"d_ff": 17},
    {"positions": "none"},
    {"num_heads": 1},
    {"head_gates": True},
    {"extra_values": "projection", "num_kv_heads": 2},
]


def parts_of(model: TransformerLM) -> dict[str, int]:
    """What the model's own parameters say, sorted into the planner's parts."""
    parts = dict.fromkeys(["token_embedding", "attention", "feed_forward", "norms", "lm_head"], 0)
    for name, parameter in model.named_parameters():
        if "head_gate" in name:
            part = "head_gates"
        elif "value_sum" in name or name.startswith("extra_values"):
            part = "extra_values"
        elif "norm" in name:
            part = "norms"
        elif name.startswith("blocks."):
            part = name.split(".")[2]
        else:
            part = name.split(".")[0]
        parts[part] = parts.get(part, 0) + parameter.numel()
    return parts


def on_meta(config: ModelConfig) -> TransformerLM:
    """The model without memory: only shapes matter here."""
    with torch.device("meta"):
        return TransformerLM.from_config(config)


@pytest.mark.parametrize("settings", [*EVERY_ABLATION, *ODD_SHAPES], ids=str)
def test_the_count_is_the_models_own(settings: dict[str, Any]) -> None:
    config = ModelConfig(**{**SMALL, **settings})
    assert count_parameters(config) == parts_of(on_meta(config))


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_counted(name: str) -> None:
    assert count_parameters(PRESETS[name]) == parts_of(on_meta(PRESETS[name]))


def test_the_known_size_of_gpt2_xls_shape() -> None:
    # 50,257 · 1,600 twice; 48 layers of 4 · 1,600² and 3 · 1,600 · 6,400; 97 norms of 1,600.
    assert sum(count_parameters(PRESETS["gpt2-xl"]).values()) == 2_127_057_600
