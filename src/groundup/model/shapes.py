"""The tensors of a model and their shapes, from its settings alone. No torch here.

A weights file is checked against this before a model is built: settings may promise anything.
"""

from groundup.model.config import ModelConfig

Shape = tuple[int, ...]


def weight_shapes(config: ModelConfig) -> dict[str, Shape]:
    """The shape of every tensor in the state dict of `TransformerLM.from_config(config)`."""
    table = config.vocab_size, config.d_model
    shapes: dict[str, Shape] = {"token_embedding.weight": table}
    block = _block_shapes(config)
    for layer in range(config.num_layers):
        shapes.update((f"blocks.{layer}.{name}.weight", shape) for name, shape in block.items())
    if config.extra_values == "projection":
        d_key_value = config.key_value_heads * config.d_head
        shapes["extra_values.norm.weight"] = (config.d_model,)
        shapes["extra_values.projection.weight"] = (d_key_value, config.d_model)
    if config.norm == "pre":
        shapes["final_norm.weight"] = (config.d_model,)
    shapes["lm_head.weight"] = table
    return shapes


def _block_shapes(config: ModelConfig) -> dict[str, Shape]:
    d_model, d_ff = config.d_model, config.feed_forward_dim
    d_key_value = config.key_value_heads * config.d_head
    shapes: dict[str, Shape] = {
        "attention.query": (d_model, d_model),
        "attention.key": (d_key_value, d_model),
        "attention.value": (d_key_value, d_model),
        "attention.output": (d_model, d_model),
        "feed_forward.up": (d_ff, d_model),
        "feed_forward.down": (d_model, d_ff),
    }
    if config.feed_forward == "swiglu":
        shapes["feed_forward.gate"] = (d_ff, d_model)
    if config.qk_norm:
        shapes |= {f"attention.{name}_norm": (config.d_head,) for name in ("query", "key")}
    if config.extra_values == "projection":
        shapes["attention.value_sum"] = (1,)
    if config.head_gates:
        shapes["attention.head_gate"] = (config.num_heads, d_model)
    if config.norm != "none":
        shapes |= {f"{name}_norm": (d_model,) for name in ("attention", "feed_forward")}
    return shapes
