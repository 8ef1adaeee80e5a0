"""Parameters and FLOPs of a model, computed from its settings.

FLOPs count only matmuls; a multiply-add is two.
"""

import functools
import math

from groundup.errors import ConfigError
from groundup.model.config import ModelConfig
from groundup.nn.limits import UNGATED
from groundup.planner.quantities import show_bytes

FLOAT32_BYTES = 4


def block_matrices(config: ModelConfig) -> dict[str, list[tuple[int, int]]]:
    """Return the shapes of the matrices of one block, by part."""
    if config.attention != "full" or config.feed_forward not in ("swiglu", *UNGATED):
        return _find_matrices(config)
    d_model, d_ff = config.d_model, config.feed_forward_dim
    d_key_value = config.key_value_heads * config.d_head
    num_in = 1 if config.feed_forward in UNGATED else 2
    return {
        "attention": [(d_model, d_model)] * 2 + [(d_key_value, d_model)] * 2,
        "feed_forward": [(d_ff, d_model)] * num_in + [(d_model, d_ff)],
        "gated_attention": [(config.num_heads, d_model)] if config.gated_attention else [],
    }


@functools.lru_cache(maxsize=8)
def _find_matrices(config: ModelConfig) -> dict[str, list[tuple[int, int]]]:
    """Return the same for custom parts, from a model on the meta device, with vectors as columns.
    Optional gains and factors of attention are counted elsewhere."""
    from groundup.model.transformer import weight_shapes

    found: dict[str, list[tuple[int, int]]]
    found = {part: [] for part in ("attention", "feed_forward", "gated_attention")}
    one_block = config.model_copy(update={"num_layers": 1, "document_separator": None})
    for name, shape in weight_shapes(one_block).items():
        part, _, weight = name.removeprefix("blocks.0.").partition(".")
        part = "gated_attention" if weight.startswith("head_gate.") else part
        if part in found and weight.split(".")[0] not in ("query_norm", "key_norm", "value_sum"):
            found[part].append((shape[0] if shape else 1, math.prod(shape[1:])))
    return found


def count_parameters(config: ModelConfig) -> dict[str, int]:
    """Return the number of parameters of each part of the model.

    token_embedding   vocab_size · d_model
    attention         num_layers · (2 · d_model² + 2 · d_model · num_kv_heads · d_head)
    feed_forward      num_layers · d_model · d_ff · (3 if gated, else 2)
    norms             d_model per norm; with query/key norm, also 2 · d_head per layer
    gated_attention   num_layers · num_heads · d_model, if enabled
    value_embeddings  d_model · num_kv_heads · d_head + d_model + num_layers, if enabled
    lm_head           vocab_size · d_model, or 0 with tied embeddings
    """
    d_model, num_layers = config.d_model, config.num_layers
    in_blocks = {
        name: num_layers * sum(rows * columns for rows, columns in shapes)
        for name, shapes in block_matrices(config).items()
    }
    # Two per block, and with pre-norm one before the output layer.
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
    if config.gated_attention:
        parts["gated_attention"] = in_blocks["gated_attention"]
    if config.value_embeddings != "none":
        parts["value_embeddings"] = (
            d_model * (config.key_value_heads * config.d_head + 1) + num_layers
        )
    return parts


def count_trainable(config: ModelConfig, lora_rank: int | None = None) -> dict[str, int]:
    """Return the number of trainable parameters: all, or with `lora_rank` those of the adapters.

    The embeddings of special tokens, which LoRA trains too, are too few to count.
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
    """Return the number of parameters in the blocks' matrices. The projection of value embeddings,
    which Muon updates too, is too small to count."""
    return parts["attention"] + parts["feed_forward"] + parts.get("gated_attention", 0)


def check_model_memory(config: ModelConfig, memory_bytes: int, num_sequences: int = 0) -> None:
    """Raise ConfigError, before any allocation, if a model's float32 weights, RoPE tables and
    `num_sequences` cached sequences exceed `memory_bytes`."""
    weights = FLOAT32_BYTES * sum(count_parameters(config).values())
    is_rotated = config.positions == "rope"
    per_position = config.d_head if is_rotated else 0
    per_position += num_sequences * 2 * config.key_value_heads * config.d_head
    of_context = FLOAT32_BYTES * config.num_layers * config.context_length * per_position
    # One layer's tables are computed in float64, from angles that are in memory as well.
    of_context += 8 * config.context_length * config.d_head if is_rotated else 0
    if weights + of_context > memory_bytes:
        raise ConfigError(
            f"the model takes {show_bytes(weights + of_context)}, with a context_length of "
            f"{config.context_length}, but this machine has {show_bytes(memory_bytes)}; use a "
            f"smaller model or context_length"
        )


# The backward pass has two matmuls for each one of the forward pass.
FORWARDS_PER_STEP = 3

OPTIMAL_SOURCE = "Hoffmann et al. 2022, arXiv 2203.15556: about 20 tokens per parameter"
_TOKENS_PER_PARAMETER = 20


def layer_flops(config: ModelConfig, num_tokens: int) -> dict[str, int]:
    """Return one block's FLOPs for one sequence of `num_tokens`, without savings of causal kernels.

    projections   2 · num_tokens · d_model · (2 d_model + 2 num_kv_heads · d_head), plus num_heads
                  in the parentheses with gated attention
    attention     4 · num_tokens² · d_model: QKᵀ, then the weights times V
    feed_forward  2 · num_tokens · d_model · d_ff · (3 if gated, else 2)
    """
    sizes = {
        part: sum(rows * columns for rows, columns in shapes)
        for part, shapes in block_matrices(config).items()
    }
    return {
        "projections": 2 * num_tokens * (sizes["attention"] + sizes["gated_attention"]),
        "attention": 4 * num_tokens**2 * config.d_model,
        "feed_forward": 2 * num_tokens * sizes["feed_forward"],
    }


def forward_flops(config: ModelConfig, num_tokens: int | None = None) -> dict[str, int]:
    """Return the FLOPs of a forward pass over one sequence, by component. `num_tokens` defaults to
    the context length. `output_head` is 2 · num_tokens · d_model · vocab_size."""
    num_tokens = config.context_length if num_tokens is None else num_tokens
    one_layer = layer_flops(config, num_tokens)
    parts = {name: config.num_layers * flops for name, flops in one_layer.items()}
    if config.value_embeddings == "projection":
        d_key_value = config.key_value_heads * config.d_head
        parts["value_embeddings"] = 2 * num_tokens * config.d_model * d_key_value
    parts["output_head"] = 2 * num_tokens * config.d_model * config.vocab_size
    return parts


def step_flops(config: ModelConfig, batch_size: int) -> int:
    """Return the FLOPs of forward and backward over full sequences; backward is twice forward."""
    return FORWARDS_PER_STEP * batch_size * sum(forward_flops(config).values())


def training_flops_per_token(config: ModelConfig) -> int:
    """Return 6N + 12 · num_layers · context_length · d_model, the FLOPs per token.

    N excludes the input embedding, which is a lookup, unless it is tied to the output layer. By
    convention, the attention term counts the full context, although causal kernels may skip half.
    """
    parts = count_parameters(config)
    num_multiplied = sum(parts.values()) - parts["token_embedding"]
    if config.tie_embeddings:
        num_multiplied += parts["token_embedding"]
    attention = 12 * config.num_layers * config.context_length * config.d_model
    return 6 * num_multiplied + attention


def flop_fractions(config: ModelConfig, num_tokens: int | None = None) -> dict[str, float]:
    """Return each component's fraction of the FLOPs of a forward pass."""
    parts = forward_flops(config, num_tokens)
    return {name: round(flops / sum(parts.values()), 4) for name, flops in parts.items()}


def optimal_tokens(num_parameters: int) -> int:
    """Return the compute-optimal number of training tokens; see OPTIMAL_SOURCE."""
    return _TOKENS_PER_PARAMETER * num_parameters


def optimal_parameters(training_flops: float) -> int:
    """Return the compute-optimal size N for a budget: 6 · N · 20 N = training_flops."""
    return round(math.sqrt(training_flops / (6 * _TOKENS_PER_PARAMETER)))
