"""How many parameters a model has, part by part, and whether they fit: from settings alone."""

import math

from groundup.errors import ConfigError
from groundup.model.config import ModelConfig
from groundup.planner.quantities import show_bytes

FLOAT32_BYTES = 4
BFLOAT16_BYTES = 2


def count_parameters(config: ModelConfig) -> dict[str, int]:
    """The parameters of each part of the model; their sum is the whole.

    token_embedding  vocab_size · d_model
    attention        num_layers · (2 · d_model² + 2 · d_model · num_kv_heads · d_head)
    feed_forward     num_layers · d_model · d_ff · (3 if gated, else 2)
    norms            d_model for each norm, and with query/key norm 2 · d_head a layer
    head_gates       num_layers · num_heads · d_model, if there are any
    extra_values     d_model · num_kv_heads · d_head + d_model + num_layers, likewise
    lm_head          vocab_size · d_model, or nothing when the embedding is tied to it
    """
    d_model, num_layers = config.d_model, config.num_layers
    d_key_value = config.key_value_heads * config.d_head
    num_feed_forward_matrices = 3 if config.feed_forward == "swiglu" else 2
    num_gains = num_layers * 2 * config.d_head if config.qk_norm else 0
    num_gains += _num_norms(config) * d_model
    embedding = config.vocab_size * d_model
    parts = {
        "token_embedding": embedding,
        "attention": num_layers * (2 * d_model**2 + 2 * d_model * d_key_value),
        "feed_forward": num_layers * num_feed_forward_matrices * d_model * config.feed_forward_dim,
        "norms": num_gains,
        "lm_head": 0 if config.tie_embeddings else embedding,
    }
    if config.head_gates:
        parts["head_gates"] = num_layers * config.num_heads * d_model
    if config.extra_values != "none":
        parts["extra_values"] = d_model * (d_key_value + 1) + num_layers
    return parts


def count_learned(config: ModelConfig, lora_rank: int | None = None) -> dict[str, int]:
    """Those that training changes: all, or with a rank the adapters of the blocks' matrices.

    The rows of special tokens, which learn beside adapters, are too few to count.
    """
    parts = count_parameters(config)
    if lora_rank is None:
        return parts
    sizes = [math.prod(shape) for shape in block_matrices(config, lora_rank)]
    # Attention has four matrices, each with two factors.
    num_gates = 2 if config.head_gates else 0
    first_gate = len(sizes) - num_gates
    adapters = {
        "attention": sum(sizes[:8]),
        "feed_forward": sum(sizes[8:first_gate]),
        "head_gates": sum(sizes[first_gate:]),
    }
    return {name: config.num_layers * adapters.get(name, 0) for name in parts}


def block_matrices(config: ModelConfig, lora_rank: int | None = None) -> list[tuple[int, int]]:
    """The shape of each matrix of one block that learns: query, output, key, value, then the
    feed-forward's, the gates of heads; with a rank, of the two factors beside each."""
    d_model, d_ff = config.d_model, config.feed_forward_dim
    d_key_value = config.key_value_heads * config.d_head
    num_in = 2 if config.feed_forward == "swiglu" else 1
    attention = [(d_model, d_model)] * 2 + [(d_key_value, d_model)] * 2
    matrices = [*attention, *[(d_ff, d_model)] * num_in, (d_model, d_ff)]
    matrices += [(config.num_heads, d_model)] if config.head_gates else []
    if lora_rank is None:
        return matrices
    factors = [((rows, lora_rank), (lora_rank, columns)) for rows, columns in matrices]
    return [shape for pair in factors for shape in pair]


def count_matrices(parts: dict[str, int]) -> int:
    """Of the `parts` of a model, those that are matrices of blocks; a projection of extra values,
    which Muon takes too, is too small beside them to count."""
    return parts["attention"] + parts["feed_forward"] + parts.get("head_gates", 0)


def check_holdable(config: ModelConfig, memory_bytes: int, num_sequences: int = 0) -> None:
    """Raise ConfigError, before anything is allocated, for a model that `memory_bytes` cannot hold.

    config: the model; its weights in float32 and its RoPE tables count.
    num_sequences: whole sequences whose keys and values are cached.
    """
    weights = FLOAT32_BYTES * sum(count_parameters(config).values())
    per_position = config.d_head if config.positions == "rope" else 0
    per_position += num_sequences * 2 * config.key_value_heads * config.d_head
    of_context = FLOAT32_BYTES * config.num_layers * config.context_length * per_position
    # A layer's tables are computed in float64, from angles that stand beside them.
    of_context += 8 * config.context_length * config.d_head if config.positions == "rope" else 0
    if weights + of_context > memory_bytes:
        raise ConfigError(
            f"the model takes {show_bytes(weights)} for its weights and {show_bytes(of_context)} "
            f"for a context_length of {config.context_length}, and this machine has "
            f"{show_bytes(memory_bytes)}: use a smaller model or context_length"
        )


def _num_norms(config: ModelConfig) -> int:
    """Two a block, and one before the output where blocks do not end in a norm of their own."""
    per_block = 0 if config.norm == "none" else 2
    return per_block * config.num_layers + (1 if config.norm == "pre" else 0)
