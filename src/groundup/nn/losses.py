"""Losses over logits that exist as a whole: cross-entropy, z-loss, perplexity.

`linear_cross_entropy` computes the same two losses without ever holding all logits.
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

    Computed in float32, or in float64 if the logits are. That targets are within the vocabulary is
    trusted, since looking would make a GPU wait.
    """
    check_targets(targets, logits.shape[:-1], logits.shape)
    wide = in_float32_at_least(logits)
    chosen = wide.gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)
    return (logsumexp(wide) - chosen).mean()


def z_loss(logits: Float[Tensor, "... vocab_size"]) -> Float[Tensor, ""]:
    """The mean of (log Z)², Z = Σ_j exp(l_j): small where the softmax denominator stays near 1.

    Cross-entropy does not change when a constant is added to all logits of a row; this holds it.
    A usual weight beside cross-entropy is 1e-4.
    """
    return logsumexp(in_float32_at_least(logits)).square().mean()


def perplexity(loss: float) -> float:
    """exp(loss), infinite where that overflows: between how many equally likely tokens the model
    hesitates, for the mean of -ln p."""
    return math.exp(loss) if loss < 700 else math.inf


def logsumexp(logits: Float[Tensor, "... vocab_size"]) -> Float[Tensor, "..."]:
    """log Σ_j exp(l_j) = m + log Σ_j exp(l_j - m), which no size of logits can overflow."""
    top = logits.detach().amax(dim=-1, keepdim=True)
    return top.squeeze(-1) + (logits - top).exp().sum(dim=-1).log()


def in_float32_at_least(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def check_targets(targets: Tensor, expected: torch.Size, source: torch.Size) -> None:
    """Refuse targets that are no integers, are empty, or have another shape than `expected`."""
    if targets.shape != expected:
        raise DataError(
            f"targets of shape {tuple(targets.shape)} do not fit inputs of shape {tuple(source)}: "
            f"give one id for each row, in shape {tuple(expected)}"
        )
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise DataError(f"targets must be of an integer type, got {targets.dtype}")
    if targets.numel() == 0:
        raise DataError(f"targets are empty: their shape is {tuple(targets.shape)}")
