"""How many parameters a model has, part by part, and how many operations it takes: from settings.

Operations are those of matmuls alone; one multiplication and one addition count as two.
"""

import functools
import math

from groundup.errors import ConfigError
from groundup.model.config import ModelConfig
from groundup.nn.limits import UNGATED
from groundup.planner.quantities import show_bytes

FLOAT32_BYTES = 4


def block_matrices(config: ModelConfig) -> dict[str, list[tuple[int, int]]]:
    """The shapes of the matrices of one block, by part."""
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
    """The same where there is no closed form, with vectors as columns: from a model on the meta
    device. The gains and factors that attention may have by settings are counted elsewhere."""
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
    """The parameters of each part of the model; their sum is the whole.

    token_embedding  vocab_size · d_model
    attention        num_layers · (2 · d_model² + 2 · d_model · num_kv_heads · d_head)
    feed_forward     num_layers · d_model · d_ff · (3 if gated, else 2)
    norms            d_model for each norm, and with query/key norm 2 · d_head a layer
    gated_attention       num_layers · num_heads · d_model, if there are any
    value_embeddings     d_model · num_kv_heads · d_head + d_model + num_layers, likewise
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
    if config.gated_attention:
        parts["gated_attention"] = in_blocks["gated_attention"]
    if config.value_embeddings != "none":
        parts["value_embeddings"] = (
            d_model * (config.key_value_heads * config.d_head + 1) + num_layers
        )
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
    """Parameters in matrices of blocks. The projection of value embeddings, also on Muon,
    is too small to count."""
    return parts["attention"] + parts["feed_forward"] + parts.get("gated_attention", 0)


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
    """All matmuls of a forward pass over one sequence, by component; without `num_tokens` it fills
    the context. `output_head` is 2 · num_tokens · d_model · vocab_size."""
    num_tokens = config.context_length if num_tokens is None else num_tokens
    one_layer = layer_flops(config, num_tokens)
    parts = {name: config.num_layers * flops for name, flops in one_layer.items()}
    if config.value_embeddings == "projection":
        d_key_value = config.key_value_heads * config.d_head
        parts["value_embeddings"] = 2 * num_tokens * config.d_model * d_key_value
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
