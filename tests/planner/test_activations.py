"""What the planner says a step keeps, against what autograd really keeps."""

from typing import Any

import pytest
import torch
from torch import Tensor

from groundup.model import TransformerLM
from groundup.model.config import ModelConfig
from groundup.planner.activations import (
    FLOAT32_ON_CPU,
    Execution,
    kept_weight_copies,
    layer_activations,
    output_activations,
)

SHAPE: dict[str, Any] = {
    "vocab_size": 50,
    "context_length": 32,
    "d_model": 64,
    "num_heads": 4,
    "num_layers": 3,
}
VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm": "post"},
    {"norm": "none"},
    {"positions": "none"},
    {"feed_forward": "silu"},
    {"feed_forward": "gelu"},
    {"feed_forward": "relu2"},
    {"qk_norm": True},
    {"qk_norm": True, "extra_values": "projection"},
    {"num_kv_heads": 2},
    {"head_gates": True},
]


def kept_bytes(config: ModelConfig, batch: int) -> int:
    """Memory that a loss holds for its backward pass, besides the model's own."""
    model = TransformerLM.from_config(config)
    own = {one.untyped_storage().data_ptr() for one in [*model.parameters(), *model.buffers()]}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.zeros(batch, config.context_length, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model.loss(ids, ids)
    total = sum(kept.values())
    assert loss.requires_grad
    return total


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_a_block_keeps_for_each_token_what_is_planned(settings: dict[str, Any]) -> None:
    one, two = (ModelConfig(**{**SHAPE, **settings, "num_layers": n}) for n in (1, 2))
    # What grows with both the batch and the layers is a block's part of a token.
    grown = (kept_bytes(two, 5) - kept_bytes(two, 2)) - (kept_bytes(one, 5) - kept_bytes(one, 2))
    planned = sum(layer_activations(one, FLOAT32_ON_CPU).values())
    assert grown / (3 * 32) == pytest.approx(planned, rel=0.02)


def test_a_block_keeps_packed_copies_of_its_weights() -> None:
    one, two = (ModelConfig(**{**SHAPE, "num_layers": n}) for n in (1, 2))
    activations = 2 * 32 * sum(layer_activations(one, FLOAT32_ON_CPU).values())
    grown = kept_bytes(two, 2) - kept_bytes(one, 2)
    assert grown - activations == pytest.approx(kept_weight_copies(one, FLOAT32_ON_CPU), rel=0.02)


def test_the_output_keeps_vectors_and_never_logits() -> None:
    config = ModelConfig(**{**SHAPE, "num_layers": 0, "vocab_size": 5_000})
    grown = (kept_bytes(config, 5) - kept_bytes(config, 2)) / (3 * 32)
    assert grown <= output_activations(config, FLOAT32_ON_CPU) < 4 * 5_000


@pytest.mark.parametrize(
    ("d_head", "context_length", "num_vectors"),
    [
        # Short attention keeps the packed projections, what they became and the mixed values.
        (32, 256, 3 + 3 + 1),
        # For torch's queries and keys are made anew, the values as they were.
        (64, 1_024, 3 + 2 + 1),
        # Heads that the kernel does not take: projections, normalized and rotated queries and keys,
        # and the mixed values twice.
        (36, 256, 3 + 2 + 2 + 2),
    ],
)
def test_query_key_norm_on_cuda_is_planned_packed_where_the_kernel_takes_it(
    d_head: int, context_length: int, num_vectors: int
) -> None:
    settings = {"d_model": 8 * d_head, "num_heads": 8, "context_length": context_length}
    config = ModelConfig(**{**SHAPE, **settings, "qk_norm": True})
    kept = layer_activations(config, Execution("cuda", "bfloat16"))
    of_attention = [kept[name] for name in ("query_key_value", "rotated", "attention_mixing")]
    # Beside the vectors each head keeps its logsumexp, and unpacked the scales of its norms.
    num_numbers = 8 if d_head != 36 else 3 * 8
    assert sum(of_attention) == 2 * num_vectors * config.d_model + 4 * num_numbers
