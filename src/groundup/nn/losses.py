"""Losses on materialized logits: cross-entropy, z-loss, perplexity.

`linear_cross_entropy` computes the first two without materializing all logits.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from groundup.errors import DataError


def cross_entropy(
    logits: Float[Tensor, "... vocab_size"], targets: Int[Tensor, "..."]
) -> Float[Tensor, ""]:
    """The mean of -log softmax(l)[target] = logsumexp(l) - l_target.

    Computed in float32, or in float64 if the logits are. Targets outside the vocabulary are not
    detected, because that would synchronize the GPU.
    """
    check_targets(targets, logits.shape[:-1], logits.shape)
    wide = at_least_float32(logits)
    chosen = wide.gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)
    return (logsumexp(wide) - chosen).mean()


def z_loss(logits: Float[Tensor, "... vocab_size"]) -> Float[Tensor, ""]:
    """The mean of (log Z)², Z = Σ_j exp(l_j), which keeps the softmax denominator near 1.

    Cross-entropy does not change if a constant is added to all logits of a row; the z-loss pins
    that constant. Its usual weight is 1e-4.
    """
    return logsumexp(at_least_float32(logits)).square().mean()


def perplexity(loss: float) -> float:
    """exp(loss), or infinity on overflow: a model that chooses uniformly among this many tokens has
    this cross-entropy."""
    return math.exp(loss) if loss < 700 else math.inf


def logsumexp(logits: Float[Tensor, "... vocab_size"]) -> Float[Tensor, "..."]:
    """log Σ_j exp(l_j) = m + log Σ_j exp(l_j - m) with m = max l, which cannot overflow."""
    top = logits.detach().amax(dim=-1, keepdim=True)
    return top.squeeze(-1) + (logits - top).exp().sum(dim=-1).log()


def at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def check_targets(targets: Tensor, expected: torch.Size, source: torch.Size) -> None:
    """Raise DataError unless targets are integers, not empty, and of shape `expected`."""
    if targets.shape != expected:
        raise DataError(
            f"targets of shape {tuple(targets.shape)} do not fit inputs of shape {tuple(source)}: "
            f"give one id per row, in shape {tuple(expected)}"
        )
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise DataError(f"targets must have an integer dtype, not {targets.dtype}")
    if targets.numel() == 0:
        raise DataError(f"targets are empty: their shape is {tuple(targets.shape)}")
