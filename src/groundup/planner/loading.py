"""Whether a model can be held at all, told before any of it is allocated."""

from groundup.errors import ConfigError
from groundup.model.config import ModelConfig
from groundup.planner.parameters import count_parameters
from groundup.planner.quantities import show_bytes

_FLOAT32_BYTES = 4


def check_holdable(config: ModelConfig, memory_bytes: int, num_sequences: int = 0) -> None:
    """Raise ConfigError for a model whose weights in float32, tables of the rotation and caches of
    so many whole sequences are more than the memory there is."""
    weights = _FLOAT32_BYTES * sum(count_parameters(config).values())
    per_position = config.d_head if config.positions == "rope" else 0
    per_position += num_sequences * 2 * config.key_value_heads * config.d_head
    of_context = _FLOAT32_BYTES * config.num_layers * config.context_length * per_position
    # A layer's tables are computed in float64, from angles that stand beside them.
    of_context += 8 * config.context_length * config.d_head if config.positions == "rope" else 0
    if weights + of_context > memory_bytes:
        raise ConfigError(
            f"the model takes {show_bytes(weights)} for its weights and {show_bytes(of_context)} "
            f"for a context_length of {config.context_length}, and this machine has "
            f"{show_bytes(memory_bytes)}: use a smaller model or context_length"
        )
