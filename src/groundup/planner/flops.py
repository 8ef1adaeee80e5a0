"""How many floating-point operations a model takes: its matmuls, and the usual rule.

A matmul of (m, k) with (k, n) is 2mkn operations. Embeddings are looked up, and norms, gates and
rotations are a thousandth of the rest: none of them counts.
"""

import math
from typing import Literal

from groundup.model.config import ModelConfig
from groundup.planner.parameters import count_parameters

OptimizerName = Literal["adamw", "sgd", "muon"]

# Each matmul has two in the backward pass, one for either factor.
FORWARDS_A_STEP = 3

OPTIMAL_SOURCE = "Hoffmann et al. 2022, arXiv 2203.15556: about 20 tokens a parameter"
_TOKENS_PER_PARAMETER = 20


def layer_flops(config: ModelConfig, num_tokens: int) -> dict[str, int]:
    """One block's matmuls for one sequence of `num_tokens`, which attends to all of itself.

    projections   2 · num_tokens · d_model · (2 d_model + 2 num_kv_heads · d_head), and with gates
                  of heads num_heads more
    attention     4 · num_tokens² · d_model: queries with keys, then weights with values
    feed_forward  2 · num_tokens · d_model · d_ff · (3 if gated, else 2)
    """
    d_model, d_key_value = config.d_model, config.key_value_heads * config.d_head
    num_matrices = 3 if config.feed_forward == "swiglu" else 2
    num_gates = config.num_heads if config.head_gates else 0
    return {
        "projections": 2 * num_tokens * d_model * (2 * (d_model + d_key_value) + num_gates),
        "attention": 4 * num_tokens**2 * d_model,
        "feed_forward": 2 * num_tokens * d_model * config.feed_forward_dim * num_matrices,
    }


def forward_flops(config: ModelConfig, num_tokens: int | None = None) -> dict[str, int]:
    """All matmuls of a forward pass over one sequence, by component; without `num_tokens` it fills
    the context. `output_head` is 2 · num_tokens · d_model · vocab_size."""
    num_tokens = config.context_length if num_tokens is None else num_tokens
    one_layer = layer_flops(config, num_tokens)
    parts = {name: config.num_layers * flops for name, flops in one_layer.items()}
    if config.extra_values == "projection":
        d_key_value = config.key_value_heads * config.d_head
        parts["extra_values"] = 2 * num_tokens * config.d_model * d_key_value
    parts["output_head"] = 2 * num_tokens * config.d_model * config.vocab_size
    return parts


def step_flops(config: ModelConfig, batch_size: int) -> int:
    """Forward and backward over whole sequences; backward counts as twice forward."""
    return FORWARDS_A_STEP * batch_size * sum(forward_flops(config).values())


def training_flops_per_token(config: ModelConfig) -> int:
    """6N + 12 · num_layers · context_length · d_model for one token, forward and backward.

    The input embedding is looked up, not multiplied, so it is not part of N unless it is tied to
    the output. The second term is attention over the whole context, though causal kernels may skip
    half of it, so that results compare with others'.
    """
    parts = count_parameters(config)
    num_multiplied = sum(parts.values()) - parts["token_embedding"]
    if config.tie_embeddings:
        num_multiplied += parts["token_embedding"]
    attention = 12 * config.num_layers * config.context_length * config.d_model
    return 6 * num_multiplied + attention


def flop_fractions(config: ModelConfig, num_tokens: int | None = None) -> dict[str, float]:
    """Each component's fraction of the operations of a forward pass."""
    parts = forward_flops(config, num_tokens)
    return {name: round(flops / sum(parts.values()), 4) for name, flops in parts.items()}


def optimal_tokens(num_parameters: int) -> int:
    """The tokens after which a larger model is the better use of the compute: OPTIMAL_SOURCE."""
    return _TOKENS_PER_PARAMETER * num_parameters


def optimal_parameters(training_flops: float) -> int:
    """The size N whose 20 N tokens cost the budget: 6 · N · 20 N = training_flops."""
    return round(math.sqrt(training_flops / (6 * _TOKENS_PER_PARAMETER)))
