"""How many floating-point operations training takes, by the usual rule."""

from groundup.model.config import ModelConfig
from groundup.planner.parameters import count_parameters


def training_flops_per_token(config: ModelConfig) -> int:
    """6N + 12 · num_layers · context_length · d_model for one token, forward and backward.

    Each of the N weights multiplies and adds once forward and twice backward. The input embedding
    is looked up, not multiplied, so it is no part of N; tied to the output it is, once. The second
    term is attention: queries with keys and weights with values, over the whole context (causal
    kernels may skip half of it; the rule does not, so that figures compare with others').
    """
    parts = count_parameters(config)
    num_multiplied = sum(parts.values()) - parts["token_embedding"]
    if config.tie_embeddings:
        num_multiplied += parts["token_embedding"]
    attention = 12 * config.num_layers * config.context_length * config.d_model
    return 6 * num_multiplied + attention
