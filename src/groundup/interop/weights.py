"""The tensors of our models under other names: of Hugging Face's Llama family and of GGUF files.

Only names and the row order of rotated heads differ: ours rotates neighbours, Llama's rotates
halves. No value changes. Files are left to others.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from einops import rearrange
from torch import Tensor

from groundup.checkpoint import check_shapes
from groundup.errors import CheckpointError, ConfigError
from groundup.interop.architectures import has_one_table
from groundup.model import ModelConfig
from groundup.model.transformer import weight_shapes

# Names of others for the parts of a block: Hugging Face's and GGUF's.
_BLOCK_NAMES = {
    "attention_norm": ("input_layernorm", "attn_norm"),
    "attention.query": ("self_attn.q_proj", "attn_q"),
    "attention.key": ("self_attn.k_proj", "attn_k"),
    "attention.value": ("self_attn.v_proj", "attn_v"),
    "attention.output": ("self_attn.o_proj", "attn_output"),
    "attention.query_norm": ("self_attn.q_norm", "attn_q_norm"),
    "attention.key_norm": ("self_attn.k_norm", "attn_k_norm"),
    "feed_forward_norm": ("post_attention_layernorm", "ffn_norm"),
    "feed_forward.gate": ("mlp.gate_proj", "ffn_gate"),
    "feed_forward.up": ("mlp.up_proj", "ffn_up"),
    "feed_forward.down": ("mlp.down_proj", "ffn_down"),
}


class WeightNames:
    """What another project calls our tensors."""

    def __init__(self, embedding: str, norm: str, head: str, block_prefix: str, which: int) -> None:
        """`block_prefix` has {} for the number of the block; `which` of `_BLOCK_NAMES`."""
        self._outer = {"token_embedding": embedding, "final_norm": norm, "lm_head": head}
        self._block_prefix, self._which = block_prefix, which

    def of(self, config: ModelConfig) -> dict[str, str]:
        """Their names by ours, of every tensor that a file holds: tied embeddings stand once."""
        names = {f"{ours}.weight": f"{theirs}.weight" for ours, theirs in self._outer.items()}
        if has_one_table(config):
            del names["lm_head.weight"]
        for number in range(config.num_layers):
            prefix = self._block_prefix.format(number)
            for ours, theirs in _BLOCK_NAMES.items():
                if config.qk_norm or ours not in ("attention.query_norm", "attention.key_norm"):
                    names[f"blocks.{number}.{ours}.weight"] = (
                        f"{prefix}{theirs[self._which]}.weight"
                    )
        return names


HUGGINGFACE_NAMES = WeightNames(
    "model.embed_tokens", "model.norm", "lm_head", "model.layers.{}.", which=0
)
GGUF_NAMES = WeightNames("token_embd", "output_norm", "output", "blk.{}.", which=1)


def to_foreign_weights(
    weights: Mapping[str, Tensor],
    config: ModelConfig,
    names: WeightNames,
    *,
    rotates_halves: bool,
) -> dict[str, Tensor]:
    """Our tensors under their names, in the row order of their rotation."""
    foreign = {}
    for ours, theirs in names.of(config).items():
        weight, num_heads = weights[ours], _num_rotated_heads(ours, config)
        if rotates_halves and num_heads is not None:
            weight = permute_rotation_rows(weight, num_heads)
        if ours == "token_embedding.weight" and config.input_scale != 1:
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
            if not bool(weight.isfinite().all()):
                raise CheckpointError(
                    f"{name} has values that are not finite: its training diverged; export an "
                    f"earlier checkpoint with --checkpoint"
                )
            raise ConfigError(
                f"{name} has values up to {float(weight.abs().max()):.6g}, which "
                f"{str(dtype).removeprefix('torch.')} cannot hold: use bfloat16 or float32"
            )
    return cast


def check_foreign_shapes(
    found: Mapping[str, tuple[int, ...]], config: ModelConfig, names: WeightNames
) -> None:
    """Raise a CheckpointError for tensors that are not those of the settings."""
    shapes = weight_shapes(config)
    expected = {theirs: shapes[ours] for ours, theirs in names.of(config).items()}
    check_shapes(expected, found)


def from_foreign_weights(
    foreign: Mapping[str, Tensor], config: ModelConfig, names: WeightNames
) -> dict[str, Tensor]:
    """Tensors of a model that rotates halves as ours, in float32; `check_foreign_shapes` has passed
    theirs."""
    names_by_ours = names.of(config)
    for name, weight in foreign.items():
        if weight.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            kind = str(weight.dtype).removeprefix("torch.")
            raise CheckpointError(
                f"{name} is {kind}, and only float32, float16 and bfloat16 weights are read: take "
                f"a checkpoint that is not quantized"
            )
    weights = {}
    for ours, theirs in names_by_ours.items():
        weight, num_heads = foreign[theirs].to(torch.float32), _num_rotated_heads(ours, config)
        weights[ours] = weight if num_heads is None else restore_rotation_rows(weight, num_heads)
    if config.tie_embeddings:
        weights["lm_head.weight"] = weights["token_embedding.weight"]
    return weights


def permute_rotation_rows(weight: Tensor, num_heads: int) -> Tensor:
    """Reorder the rows of every head from pairs (2k, 2k+1) to pairs (k, k + d_head/2).

    Queries and keys are reordered alike, so their dot products stay what they were. A vector of
    d_head gains, shared by the heads, is a weight of one head.
    """
    return rearrange(
        weight, "(heads pair part) ... -> (heads part pair) ...", heads=num_heads, part=2
    )


def restore_rotation_rows(weight: Tensor, num_heads: int) -> Tensor:
    """The inverse: from pairs (k, k + d_head/2) to pairs (2k, 2k+1)."""
    return rearrange(
        weight, "(heads part pair) ... -> (heads pair part) ...", heads=num_heads, part=2
    )


def _num_rotated_heads(ours: str, config: ModelConfig) -> int | None:
    """How many heads' rows a tensor has, if they are rotated by position."""
    part = ours.partition(".attention.")[2].removesuffix(".weight")
    counts = {
        "query": config.num_heads,
        "key": config.key_value_heads,
        "query_norm": 1,
        "key_norm": 1,
    }
    return counts.get(part)
