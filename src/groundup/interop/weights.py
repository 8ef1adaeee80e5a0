"""Converts weights between our names and those of Hugging Face's Llama family and GGUF files.

Only the names and the row order of rotated heads differ: ours rotates adjacent pairs, Llama's
rotates halves. Values do not change, except that an embedding scale is folded in.
"""

from collections.abc import Mapping

import torch
from einops import rearrange
from torch import Tensor

from groundup.checkpoint import check_shapes
from groundup.errors import CheckpointError, ConfigError
from groundup.interop.architectures import has_one_table
from groundup.model import ModelConfig
from groundup.model.transformer import weight_shapes

Names = Mapping[str, str]

OWN_NAMES: Names = {}
"""For files with our own names and rotation."""

# Our tensors' names in Hugging Face and GGUF files; {} is the block's index.
_NAMES = {
    "token_embedding": ("model.embed_tokens", "token_embd"),
    "final_norm": ("model.norm", "output_norm"),
    "lm_head": ("lm_head", "output"),
    "blocks.{}.attention_norm": ("model.layers.{}.input_layernorm", "blk.{}.attn_norm"),
    "blocks.{}.attention.query": ("model.layers.{}.self_attn.q_proj", "blk.{}.attn_q"),
    "blocks.{}.attention.key": ("model.layers.{}.self_attn.k_proj", "blk.{}.attn_k"),
    "blocks.{}.attention.value": ("model.layers.{}.self_attn.v_proj", "blk.{}.attn_v"),
    "blocks.{}.attention.output": ("model.layers.{}.self_attn.o_proj", "blk.{}.attn_output"),
    "blocks.{}.attention.query_norm": ("model.layers.{}.self_attn.q_norm", "blk.{}.attn_q_norm"),
    "blocks.{}.attention.key_norm": ("model.layers.{}.self_attn.k_norm", "blk.{}.attn_k_norm"),
    "blocks.{}.feed_forward_norm": ("model.layers.{}.post_attention_layernorm", "blk.{}.ffn_norm"),
    "blocks.{}.feed_forward.gate": ("model.layers.{}.mlp.gate_proj", "blk.{}.ffn_gate"),
    "blocks.{}.feed_forward.up": ("model.layers.{}.mlp.up_proj", "blk.{}.ffn_up"),
    "blocks.{}.feed_forward.down": ("model.layers.{}.mlp.down_proj", "blk.{}.ffn_down"),
}
HUGGINGFACE_NAMES, GGUF_NAMES = (
    {ours: both[one] for ours, both in _NAMES.items()} for one in (0, 1)
)

# Row order of each head: ours rotates pairs (2k, 2k+1), Llama's (k, k + d_head/2). Queries and keys
# are permuted alike, which leaves their dot products unchanged.
_TO_HALVES = "(heads pair part) ... -> (heads part pair) ..."
_TO_PAIRS = "(heads part pair) ... -> (heads pair part) ..."


def _names_of(config: ModelConfig, names: Names) -> dict[str, str]:
    """Map our names to theirs for every tensor in a file; tied embeddings are stored once."""
    if names is OWN_NAMES:
        tied = ["lm_head.weight"] if config.tie_embeddings else []
        return {name: name for name in weight_shapes(config) if name not in tied}
    absent = ["lm_head"] if has_one_table(config) else []
    if not config.qk_norm:
        absent += ["blocks.{}.attention.query_norm", "blocks.{}.attention.key_norm"]
    kept = {ours: theirs for ours, theirs in names.items() if ours not in absent}
    found = {ours: theirs for ours, theirs in kept.items() if "{}" not in ours}
    for number in range(config.num_layers):
        in_block = {ours: theirs for ours, theirs in kept.items() if "{}" in ours}
        found |= {ours.format(number): theirs.format(number) for ours, theirs in in_block.items()}
    return {f"{ours}.weight": f"{theirs}.weight" for ours, theirs in found.items()}


def to_foreign_weights(
    weights: Mapping[str, Tensor], config: ModelConfig, names: Names, *, rotates_halves: bool
) -> dict[str, Tensor]:
    """Rename our tensors, and permute the rows if the target rotates halves."""
    foreign = {}
    for ours, theirs in _names_of(config, names).items():
        weight, num_heads = weights[ours], _num_rotated_heads(ours, config)
        if rotates_halves and num_heads is not None:
            weight = rearrange(weight, _TO_HALVES, heads=num_heads, part=2)
        is_table = ours == "token_embedding.weight" and names is not OWN_NAMES
        if is_table and config.input_scale != 1:
            weight = weight * config.input_scale
        foreign[theirs] = weight
    return foreign


def cast_weights(
    weights: Mapping[str, Tensor], dtype: torch.dtype, *, keep_vectors: bool = False
) -> dict[str, Tensor]:
    """Cast the tensors; raise ConfigError on overflow. keep_vectors: leave 1-D ones in float32."""
    cast = {}
    for name, weight in weights.items():
        cast[name] = weight.to(torch.float32 if keep_vectors and weight.ndim == 1 else dtype)
        if not bool(cast[name].isfinite().all()):
            largest = float(weight.abs().max())
            raise ConfigError(
                f"{name} has values up to {largest:.6g}, too large for {dtype}: use another --dtype"
            )
    return cast


def from_foreign_weights(
    foreign: Mapping[str, Tensor], config: ModelConfig, names: Names
) -> dict[str, Tensor]:
    """Convert to our names and float32; unless the names are ours, the model rotates halves. Raises
    CheckpointError for names or shapes that do not match the settings."""
    shapes = weight_shapes(config)
    check_shapes({theirs: shapes[one] for one, theirs in _names_of(config, names).items()}, foreign)
    for name, weight in foreign.items():
        if weight.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise CheckpointError(f"{name} is {weight.dtype}: use a 16-bit or 32-bit checkpoint")
    weights = {}
    for ours, theirs in _names_of(config, names).items():
        weight, num_heads = foreign[theirs].to(torch.float32), _num_rotated_heads(ours, config)
        if num_heads is not None and names is not OWN_NAMES:
            weight = rearrange(weight, _TO_PAIRS, heads=num_heads, part=2)
        weights[ours] = weight
    if config.tie_embeddings:
        weights["lm_head.weight"] = weights["token_embedding.weight"]
    return weights


def _num_rotated_heads(ours: str, config: ModelConfig) -> int | None:
    """The number of heads in a tensor that RoPE rotates, else None."""
    part = ours.partition(".attention.")[2].removesuffix(".weight")
    # All heads share the gains of a norm.
    counts = {"query": config.num_heads, "key": config.key_value_heads}
    return (counts | {"query_norm": 1, "key_norm": 1}).get(part)
