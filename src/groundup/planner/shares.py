"""How a forward pass divides among its components, and how that moves with size and context."""

from groundup.model.config import PRESETS, ModelConfig
from groundup.planner.flops import forward_flops

_SIZES = ("gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl")
_CONTEXT_FACTORS = (1, 2, 4, 8, 16)


def flop_shares(config: ModelConfig, num_tokens: int | None = None) -> dict[str, float]:
    """Each component's part of the products of a forward pass; together 1."""
    parts = forward_flops(config, num_tokens)
    total = sum(parts.values())
    return {name: flops / total for name, flops in parts.items()}


def shares_by_size() -> dict[str, dict[str, float]]:
    """The shares of the GPT-2 family, from small to XL, each at its own context."""
    return {name: flop_shares(PRESETS[name]) for name in _SIZES}


def shares_by_context(config: ModelConfig) -> dict[int, dict[str, float]]:
    """The shares of one model at its context and at up to sixteen times of it."""
    lengths = [factor * config.context_length for factor in _CONTEXT_FACTORS]
    return {length: flop_shares(config, length) for length in lengths}
