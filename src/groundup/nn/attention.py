"""Causal multi-head self-attention, with grouped queries, RoPE and QK norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from groundup.nn import kernels as fused
from groundup.nn.functional import (
    document_mask,
    fused_attention,
    scaled_dot_product_attention,
    softmax,
)
from groundup.nn.kv_cache import LayerCache
from groundup.nn.limits import is_packed_attention
from groundup.nn.linear import Linear, packed_linear
from groundup.nn.norm import RMSNorm
from groundup.nn.rope import RotaryEmbedding
from groundup.nn.value_embeddings import ValueSum


class MultiHeadSelfAttention(nn.Module):
    """Each head attends separately, and the output projection mixes them:

        Q, K, V = W_query x, W_key x, W_value x, split into heads of d_head = d_model / num_heads
        y = W_output concat_h softmax(Q_h K_hᵀ / √d_head + causal mask) V_h

    theta: base of RoPE, which needs `max_seq_len`; None for no RoPE.
    num_kv_heads: each serves num_heads / num_kv_heads query heads; `num_heads` by default.
    qk_norm: normalize queries and keys, with `norm_eps`, before RoPE.
    gated_attention: multiply the output of head h by 2 σ(w_h x), initially 1.
    value_embeddings: V = W_value x + a e, where e is passed to each call and a is learned.
    """

    attention_name = "full"

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        max_seq_len: int | None = None,
        theta: float | None = None,
        num_kv_heads: int | None = None,
        qk_norm: bool = False,
        norm_eps: float = 1e-5,
        gated_attention: bool = False,
        value_embeddings: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.d_head = d_model // num_heads
        d_kv = self.num_kv_heads * self.d_head
        kwargs: dict[str, Any] = {"device": device, "dtype": dtype}
        self.query = Linear(d_model, d_model, **kwargs)
        self.key = Linear(d_model, d_kv, **kwargs)
        self.value = Linear(d_model, d_kv, **kwargs)
        self.output = Linear(d_model, d_model, **kwargs)
        self.query_norm = self.key_norm = None
        if qk_norm:
            self.query_norm = RMSNorm(self.d_head, norm_eps, **kwargs)
            self.key_norm = RMSNorm(self.d_head, norm_eps, **kwargs)
        self.head_gate = Linear(d_model, num_heads, **kwargs) if gated_attention else None
        if self.head_gate is not None:
            nn.init.zeros_(self.head_gate.weight)
        self.value_sum = ValueSum(**kwargs) if value_embeddings else None
        self.rope = None
        if theta is not None:
            assert max_seq_len is not None
            self.rope = RotaryEmbedding(theta, self.d_head, max_seq_len, device=device)

    def forward(
        self,
        x: Float[Tensor, "... seq d_model"],
        token_positions: Int[Tensor, "... seq"] | None = None,
        cache: LayerCache | None = None,
        document_starts: Int[Tensor, "... seq"] | None = None,
        value_embedding: Float[Tensor, "... seq d_key_value"] | None = None,
    ) -> Float[Tensor, "... seq d_model"]:
        """token_positions: 0, 1, … along the sequence by default; required with a cache.
        cache: receives the new keys and values at their positions; a query at position p then
            attends to keys 0 to p of its row in the cache.
        document_starts: the first position each token attends to, in x or in the cache.
        value_embedding: e of `value_embeddings`.
        """
        mixed = self._attention_output(x, token_positions, cache, document_starts, value_embedding)
        y: Tensor = self.output(self.gated(mixed, x))
        return y

    def gated(
        self, mixed: Float[Tensor, "... d_model"], x: Float[Tensor, "... d_model"]
    ) -> Float[Tensor, "... d_model"]:
        """Apply the gates, if any, to the output of the heads."""
        if self.head_gate is None:
            return mixed
        gates: Tensor = 2 * torch.sigmoid(self.head_gate(x))
        heads = mixed.view(*mixed.shape[:-1], self.num_heads, self.d_head)
        return (heads * gates.unsqueeze(-1)).flatten(-2)

    def _attention_output(
        self,
        x: Tensor,
        token_positions: Tensor | None,
        cache: LayerCache | None,
        document_starts: Tensor | None,
        value_embedding: Tensor | None,
    ) -> Tensor:
        projections = (self.query, self.key, self.value)
        if fused.are_enabled():
            packed = packed_linear(x, projections)
            if token_positions is None and self._can_stay_packed(packed):
                return self._attend_packed(packed, value_embedding, document_starts)
            sizes = [projection.out_features for projection in projections]
            queries, keys, values = torch.split(packed, sizes, dim=-1)
        else:
            queries, keys, values = (projection(x) for projection in projections)
        if self.value_sum is not None and value_embedding is not None:
            values = self.value_sum(values, value_embedding)
        query, key, value = self._heads((queries, keys, values), token_positions)
        mask = None
        if cache is None and document_starts is not None:
            mask = document_mask(document_starts).unsqueeze(-3)  # Shared by all heads.
        elif cache is not None:
            assert token_positions is not None, "a cache needs token_positions"
            cache.write(key, value, token_positions)
            key, value = cache.keys, cache.values
            mask = cache.visible(token_positions, document_starts)
        mixed = self._attend(query, key, value, mask)
        return rearrange(mixed, "... heads seq d_head -> ... seq (heads d_head)")

    def weights(
        self,
        x: Float[Tensor, "... seq d_model"],
        document_starts: Int[Tensor, "... seq"] | None = None,
    ) -> Float[Tensor, "... heads seq seq"]:
        """Attention weights softmax(QKᵀ/√d_head), with keys before a query's start masked."""
        projected = (self.query(x), self.key(x), self.value(x))
        query, key, _ = self._heads(projected, None)
        key = key.repeat_interleave(self.num_heads // self.num_kv_heads, dim=-3)
        scores = query @ key.mT / math.sqrt(self.d_head)
        if document_starts is None:
            document_starts = x.new_zeros(x.shape[-2], dtype=torch.int64)
        is_seen = document_mask(document_starts).unsqueeze(-3)
        return softmax(scores.masked_fill(~is_seen, -torch.inf), dim=-1)

    def _heads(
        self, projected: Sequence[Tensor], token_positions: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Split projections into heads; apply QK norm and RoPE to queries and keys."""
        query, key, value = (
            rearrange(part, "... seq (heads d_head) -> ... heads seq d_head", d_head=self.d_head)
            for part in projected
        )
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if self.rope is not None:
            # All heads share one row of positions.
            positions = None if token_positions is None else token_positions.unsqueeze(-2)
            query, key = self.rope(query, positions), self.rope(key, positions)
        return query, key, value

    def _can_stay_packed(self, packed: Tensor) -> bool:
        is_taken = not packed.is_cuda or is_packed_attention(packed.shape[-2], self.d_head)
        is_packed = self.num_kv_heads == self.num_heads and packed.ndim == 3
        return is_taken and is_packed and fused.can_run_on(packed)

    def _attend_packed(
        self, packed: Tensor, value_embedding: Tensor | None, document_starts: Tensor | None
    ) -> Tensor:
        options: dict[str, Any] = {"document_starts": document_starts}
        if self.query_norm is not None and self.key_norm is not None:
            gains = self.query_norm.weight, self.key_norm.weight
            options |= {"gains": gains, "eps": self.query_norm.eps}
        if self.value_sum is not None and value_embedding is not None and packed.is_cuda:
            options["value_embedding"] = value_embedding, self.value_sum.weight
        elif self.value_sum is not None and value_embedding is not None:
            rest, values = packed.tensor_split([-self.value.out_features], dim=-1)
            packed = torch.cat((rest, self.value_sum(values, value_embedding)), dim=-1)
        if self.rope is not None:
            self.rope.check_length(packed.shape[-2])
            options["rotation"] = self.rope.cos, self.rope.sin
        return fused.packed_attention(packed, self.num_heads, **options)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Attend with grouped keys and values; causal if `mask` is None."""
        group = self.num_heads // self.num_kv_heads
        if group > 1:
            key = key.repeat_interleave(group, dim=-3)
            value = value.repeat_interleave(group, dim=-3)
        if fused.are_enabled():
            return fused_attention(query, key, value, mask)
        if mask is None:
            seq = query.shape[-2]
            mask = torch.ones(seq, seq, dtype=torch.bool, device=query.device).tril()
        return scaled_dot_product_attention(query, key, value, mask)
