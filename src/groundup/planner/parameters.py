"""How many parameters a model has, part by part, and whether they fit: from settings alone."""

from groundup.errors import ConfigError
from groundup.model.config import ModelConfig
from groundup.planner.quantities import show_bytes

FLOAT32_BYTES = 4


def block_matrices(config: ModelConfig) -> dict[str, list[tuple[int, int]]]:
    """The shapes of the matrices of one block, by part."""
    d_model, d_ff = config.d_model, config.feed_forward_dim
    d_key_value = config.key_value_heads * config.d_head
    num_in = 2 if config.feed_forward == "swiglu" else 1
    return {
        "attention": [(d_model, d_model)] * 2 + [(d_key_value, d_model)] * 2,
        "feed_forward": [(d_ff, d_model)] * num_in + [(d_model, d_ff)],
        "head_gates": [(config.num_heads, d_model)] if config.head_gates else [],
    }


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
    in_blocks = {
        name: num_layers * sum(rows * columns for rows, columns in shapes)
        for name, shapes in block_matrices(config).items()
    }
    # Two a block, and one before the output where blocks do not end in a norm of their own.
    num_norms = (0 if config.norm == "none" else 2 * num_layers) + (config.norm == "pre")
    num_gains = num_norms * d_model + (num_layers * 2 * config.d_head if config.qk_norm else 0)
    embedding = config.vocab_size * d_model
    parts = {
        "token_embedding": embedding,
        "attention": in_blocks["attention"],
        "feed_forward": in_blocks["feed_forward"],
        "norms": num_gains,
        "lm_head": 0 if config.tie_embeddings else embedding,
    }
    if config.head_gates:
        parts["head_gates"] = in_blocks["head_gates"]
    if config.extra_values != "none":
        parts["extra_values"] = d_model * (config.key_value_heads * config.d_head + 1) + num_layers
    return parts


def count_learned(config: ModelConfig, lora_rank: int | None = None) -> dict[str, int]:
    """Those that training changes: all, or with a rank the adapters of the blocks' matrices.

    The rows of special tokens, which learn beside adapters, are too few to count.
    """
    parts = count_parameters(config)
    if lora_rank is None:
        return parts
    adapters = {
        name: lora_rank * sum(rows + columns for rows, columns in shapes)
        for name, shapes in block_matrices(config).items()
    }
    return {name: config.num_layers * adapters.get(name, 0) for name in parts}


def count_matrices(parts: dict[str, int]) -> int:
    """Of the `parts` of a model, those that are matrices of blocks; a projection of extra values,
    which Muon takes too, is too small beside them to count."""
    return parts["attention"] + parts["feed_forward"] + parts.get("head_gates", 0)


def check_holdable(config: ModelConfig, memory_bytes: int, num_sequences: int = 0) -> None:
    """Raise ConfigError, before anything is allocated, for a model whose float32 weights, RoPE
    tables and `num_sequences` cached sequences `memory_bytes` cannot hold."""
    weights = FLOAT32_BYTES * sum(count_parameters(config).values())
    is_rotated = config.positions == "rope"
    per_position = config.d_head if is_rotated else 0
    per_position += num_sequences * 2 * config.key_value_heads * config.d_head
    of_context = FLOAT32_BYTES * config.num_layers * config.context_length * per_position
    # A layer's tables are computed in float64, from angles that stand beside them.
    of_context += 8 * config.context_length * config.d_head if is_rotated else 0
    if weights + of_context > memory_bytes:
        raise ConfigError(
            f"the model takes {show_bytes(weights + of_context)}, with a context_length of "
            f"{config.context_length}, and this machine has {show_bytes(memory_bytes)}: use a "
            f"smaller model or context_length"
        )
