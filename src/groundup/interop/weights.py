"""The tensors of our models under other names: of Hugging Face's Llama family and of GGUF files.

Only names and the row order of rotated heads differ: ours rotates neighbours, Llama's rotates
halves. No value changes. Files are left to others.
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
"""Of a file that has our own names and rotation."""

# What others call our tensors, with {} for the number of a block: in Hugging Face's and GGUF files.
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

# Of the rows of each head: ours rotates pairs (2k, 2k+1), Llama's (k, k + d_head/2), queries and
# keys alike, so that their dot products stay what they were.
_TO_HALVES = "(heads pair part) ... -> (heads part pair) ..."
_TO_PAIRS = "(heads part pair) ... -> (heads pair part) ..."


def _names_of(config: ModelConfig, names: Names) -> dict[str, str]:
    """Their names by ours, of every tensor that a file holds: tied embeddings stand once."""
    if names is OWN_NAMES:
        tied = ["lm_head.weight"] if config.tie_embeddings else []
        return {name: name for name in weight_shapes(config) if name not in tied}
    lacking = ["lm_head"] if has_one_table(config) else []
    if not config.qk_norm:
        lacking += ["blocks.{}.attention.query_norm", "blocks.{}.attention.key_norm"]
    held = {ours: theirs for ours, theirs in names.items() if ours not in lacking}
    found = {ours: theirs for ours, theirs in held.items() if "{}" not in ours}
    for number in range(config.num_layers):
        in_block = {ours: theirs for ours, theirs in held.items() if "{}" in ours}
        found |= {ours.format(number): theirs.format(number) for ours, theirs in in_block.items()}
    return {f"{ours}.weight": f"{theirs}.weight" for ours, theirs in found.items()}


def to_foreign_weights(
    weights: Mapping[str, Tensor], config: ModelConfig, names: Names, *, rotates_halves: bool
) -> dict[str, Tensor]:
    """Our tensors under their names, in the row order of their rotation."""
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
    """The tensors in another precision, but vectors where they are kept; nothing may overflow."""
    cast = {}
    for name, weight in weights.items():
        cast[name] = weight.to(torch.float32 if keep_vectors and weight.ndim == 1 else dtype)
        if not bool(cast[name].isfinite().all()):
            most = float(weight.abs().max())
            raise ConfigError(f"{name} has values up to {most:.6g}, which {dtype} cannot hold")
    return cast


def from_foreign_weights(
    foreign: Mapping[str, Tensor], config: ModelConfig, names: Names
) -> dict[str, Tensor]:
    """Tensors as ours, in float32; of a model that rotates halves, unless it has our names. A
    CheckpointError names those that are not what the settings say."""
    shapes = weight_shapes(config)
    check_shapes({theirs: shapes[one] for one, theirs in _names_of(config, names).items()}, foreign)
    for name, weight in foreign.items():
        if weight.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise CheckpointError(f"{name} is {weight.dtype}: take a checkpoint in 16 or 32 bits")
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
    """How many heads' rows a tensor has, if they are rotated by position."""
    part = ours.partition(".attention.")[2].removesuffix(".weight")
    # The gains of a norm are shared by the heads.
    counts = {"query": config.num_heads, "key": config.key_value_heads}
    return (counts | {"query_norm": 1, "key_norm": 1}).get(part)
