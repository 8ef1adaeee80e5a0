"""Operations without parameters: activations, softmax, attention. They follow their formulas; the
layers choose torch's fused equivalents."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def silu(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """silu(x) = x · sigmoid(x)."""
    return x * torch.sigmoid(x)


def gelu(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """gelu(x) = x · Φ(x) = x · (1 + erf(x / √2)) / 2."""
    return x * (1.0 + torch.erf(x / math.sqrt(2.0))) * 0.5


def squared_relu(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """relu2(x) = max(x, 0)²."""
    positive = x.clamp(min=0.0)
    return positive * positive


def dropout(x: Float[Tensor, "..."], rate: float) -> Float[Tensor, "..."]:
    """Zero each value with probability `rate` and scale up the others to keep the mean."""
    kept = torch.rand(x.shape, device=x.device) >= rate
    return torch.where(kept, x / (1.0 - rate), 0.0)


def softmax(x: Float[Tensor, "..."], dim: int) -> Float[Tensor, "..."]:
    """softmax(x)_i = exp(x_i - max x) / Σ_j exp(x_j - max x) along `dim`.

    Subtracting the maximum keeps exp from overflowing and does not change the result.
    """
    exponentials = torch.exp(x - x.amax(dim=dim, keepdim=True))
    return exponentials / exponentials.sum(dim=dim, keepdim=True)


def scaled_dot_product_attention(
    query: Float[Tensor, "... queries d_k"],
    key: Float[Tensor, "... keys d_k"],
    value: Float[Tensor, "... keys d_v"],
    mask: Bool[Tensor, "... queries keys"] | None = None,
) -> Float[Tensor, "... queries d_v"]:
    """softmax(Q Kᵀ / √d_k) V.

    mask: True where a query may attend to a key; None for everywhere.
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return softmax(scores, dim=-1) @ value


def sequence_starts(is_first: Bool[Tensor, "... seq"]) -> Int[Tensor, "... seq"]:
    """For rows that pack several sequences: the first position of each token's sequence. Tokens
    before the first `is_first` form a sequence too."""
    positions = torch.arange(is_first.shape[-1], device=is_first.device)
    return torch.where(is_first, positions, 0).cummax(-1).values


def document_mask(document_starts: Int[Tensor, "... seq"]) -> Bool[Tensor, "... seq seq"]:
    """Mask of the keys each query may attend to: from its start to its own position."""
    positions = torch.arange(document_starts.shape[-1], device=document_starts.device)
    return (positions >= document_starts.unsqueeze(-1)) & (positions <= positions.unsqueeze(-1))


def fused_attention(
    query: Float[Tensor, "... queries d_k"],
    key: Float[Tensor, "... keys d_k"],
    value: Float[Tensor, "... keys d_v"],
    mask: Bool[Tensor, "... queries keys"] | None = None,
) -> Float[Tensor, "... queries d_v"]:
    """The same by torch's kernel, which never materializes all scores.

    mask: True where a query may attend to a key; None for causal.
    """
    attend = torch.nn.functional.scaled_dot_product_attention
    if mask is not None:
        return attend(query, key, value, attn_mask=mask)
    # Its fast kernels only support (batch, heads, seq, d).
    query4, key4, value4 = (
        x if x.ndim == 4 else x.reshape(-1, *(x if x.ndim > 2 else x[None]).shape[-3:])
        for x in (query, key, value)
    )
    mixed = attend(query4, key4, value4, is_causal=True)
    return mixed if query.ndim == 4 else mixed.reshape(*query.shape[:-1], value.shape[-1])
