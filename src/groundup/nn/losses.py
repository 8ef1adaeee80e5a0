"""Losses over logits that exist as a whole: cross-entropy, z-loss, perplexity.

`linear_cross_entropy` computes the same two losses without ever holding all logits.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from groundup.errors import DataError


def cross_entropy(
    logits: Float[Tensor, "... vocab_size"], targets: Int[Tensor, "..."]
) -> Float[Tensor, ""]:
    """The mean of -log softmax(l)[target] = m + log Σ_j exp(l_j - m) - l_target, with m = max l.

    Computed in float32, or in float64 if the logits are. That targets are within the vocabulary
    is trusted: looking would make a GPU wait.
    """
    check_targets(targets, logits.shape[:-1], logits.shape)
    wide = in_float32_at_least(logits)
    chosen = wide.gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)
    return (log_denominator(wide) - chosen).mean()


def z_loss(logits: Float[Tensor, "... vocab_size"]) -> Float[Tensor, ""]:
    """The mean of (log Z)², Z = Σ_j exp(l_j): small where the softmax denominator stays near 1.

    Cross-entropy does not change when all logits of a row move together; this holds them in place.
    A usual weight beside cross-entropy is 1e-4.
    """
    return log_denominator(in_float32_at_least(logits)).square().mean()


def perplexity(loss: float | Tensor) -> Tensor:
    """exp(loss): how many equally likely tokens the model hesitates between."""
    return torch.exp(torch.as_tensor(loss))


def log_denominator(logits: Float[Tensor, "... vocab_size"]) -> Float[Tensor, "..."]:
    """log Σ_j exp(l_j) = m + log Σ_j exp(l_j - m), which no size of logits can overflow."""
    top = logits.detach().amax(dim=-1, keepdim=True)
    return top.squeeze(-1) + (logits - top).exp().sum(dim=-1).log()


def in_float32_at_least(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def check_targets(targets: Tensor, expected: torch.Size, source: torch.Size) -> None:
    """Refuse targets that are no integers, none at all, or not one for each row of `source`."""
    if targets.shape != expected:
        raise DataError(
            f"targets of shape {tuple(targets.shape)} do not fit scores of shape {tuple(source)}: "
            f"give one id for each row, in shape {tuple(expected)}"
        )
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise DataError(f"targets are ids, so their type must be an integer; it is {targets.dtype}")
    if targets.numel() == 0:
        raise DataError(f"there is no loss of nothing: targets have shape {tuple(targets.shape)}")
