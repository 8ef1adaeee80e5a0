"""Sample the next id. The rules keep the first ids in the order of probability (lower ids first on
ties): top-k a number of ids, top-p a total probability, min-p those close enough to the best.

`sample` needs neither a sort nor a threshold: it draws from all ids and, if the drawn id is not
kept, draws again from the ids before it in that order. Each draw takes one number in [0, 1): the
first is a function of seed and position, each later one of the number before it. There is no state,
and the order in which texts are sampled does not matter.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from groundup.data.counter_random import random_uint64
from groundup.errors import CheckpointError
from groundup.generation.request import NO_ID, Sampler

STREAM = 0x7E87
"""Random stream of sampling. Arbitrary, but must never change: samples depend on it."""

_LOW_32 = 0xFFFFFFFF


def sample(
    sampler: Sampler,
    logits: Float[Tensor, "... vocab"],
    uniforms: Float[Tensor, "..."],
    seen: Bool[Tensor, "... vocab"] | None = None,
) -> Int[Tensor, "..."]:
    """Sample one id per row, or NO_ID if its logits are not finite.

    uniforms: a number in [0, 1) per row, inverted through the cumulative distribution in id order.
    seen: the ids already in each row's text, for the repetition penalty.
    """
    logits = logits.float()
    if logits.device.type == "mps":
        # MPS has no float64, which the sums below need.
        logits, seen = logits.cpu(), None if seen is None else seen.cpu()
    is_finite = logits.amax(dim=-1).isfinite()
    if seen is not None and sampler.needs_history:
        logits = penalize(logits, seen, sampler.repetition_penalty)
    if sampler.temperature == 0:
        return torch.where(is_finite, logits.argmax(dim=-1), NO_ID)
    ids = torch.full(is_finite.shape, NO_ID, device=logits.device)
    if is_finite.any():
        numbers = uniforms.to(logits.device, torch.float64).expand(is_finite.shape)
        ids[is_finite] = _sample(sampler, logits[is_finite], numbers[is_finite])
    return ids


def _sample(sampler: Sampler, logits: Tensor, numbers: Tensor) -> Tensor:
    vocab_size = logits.shape[-1]
    most = min(sampler.top_k or vocab_size, vocab_size)
    scores = _scores(sampler, logits)
    weights = torch.exp(scores)
    # Sums are float64: the total times a 32-bit number below 1 is then less than the total, so an
    # id with zero probability is never drawn.
    sums = weights.cumsum(dim=-1, dtype=torch.float64)
    mass = sums[:, -1:]
    if most < vocab_size and sampler.top_p < 1:
        mass = weights.topk(most, dim=-1).values.sum(dim=-1, keepdim=True, dtype=torch.float64)
    target = sampler.top_p * mass
    ids = torch.empty(len(logits), dtype=torch.long, device=logits.device)
    left, columns = (torch.arange(n, device=ids.device) for n in logits.shape)
    while len(left):
        drawn = torch.searchsorted(sums, numbers[:, None] * sums[:, -1:], right=True)
        ids[left] = drawn[:, 0]
        if sampler.top_p == 1 and most == vocab_size and sampler.min_p == 0:
            break
        score = scores.gather(-1, drawn)
        is_before = (scores > score) | ((scores == score) & (columns < drawn))
        before = torch.where(is_before, weights, 0.0)
        mass = before.sum(dim=-1, keepdim=True, dtype=torch.float64)
        is_kept = (mass < target) & (score >= _log(sampler.min_p))
        is_kept &= is_before.sum(dim=-1, keepdim=True) < most
        # Always keep the most likely id, even if top-p times its weight rounds to 0.
        again = (~is_kept & (mass > 0)).nonzero()[:, 0]
        left, target, scores, weights = left[again], target[again], scores[again], before[again]
        sums, numbers = weights.cumsum(dim=-1, dtype=torch.float64), _next(numbers[again])
    return ids


def _scores(sampler: Sampler, logits: Tensor) -> Tensor:
    """Logits at the temperature, at most 0."""
    # Subtract the maximum first: dividing by a tiny temperature then cannot overflow to +inf.
    return (logits - logits.amax(dim=-1, keepdim=True)) / sampler.temperature


def _log(probability: float) -> float:
    return math.log(probability) if probability else -math.inf


def _next(numbers: Tensor) -> Tensor:
    """The number of the next draw: a bijection of its 32 bits, MurmurHash3's finalizer."""
    bits = ((numbers * 2.0**32).long() + 0x9E3779B9) & _LOW_32
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits = ((bits ^ (bits >> shift)) * factor) & _LOW_32
    return (bits ^ (bits >> 16)).double() * 2.0**-32


def apply_rules(
    sampler: Sampler,
    logits: Float[Tensor, "... vocab"],
    seen: Bool[Tensor, "... vocab"] | None = None,
) -> Float[Tensor, "... vocab"]:
    """Return the logits that `sample` samples from, up to a constant and with -inf for the ids that
    are not kept; at temperature 0, it takes their argmax."""
    if seen is not None and sampler.needs_history:
        logits = penalize(logits, seen, sampler.repetition_penalty)
    if sampler.temperature == 0:
        return logits
    ordered, order = _scores(sampler, logits).sort(dim=-1, descending=True, stable=True)
    if sampler.top_k is not None:
        ordered[..., sampler.top_k :] = -torch.inf
    is_kept = ordered >= _log(sampler.min_p)
    if sampler.top_p < 1:
        weights = torch.exp(ordered).double()
        sums = weights.cumsum(dim=-1)
        is_kept &= sums - weights < sampler.top_p * sums[..., -1:]
        is_kept[..., 0] = True
    return torch.empty_like(ordered).scatter(-1, order, ordered.where(is_kept, -torch.inf))


def penalize(
    logits: Float[Tensor, "... vocab"], seen: Bool[Tensor, "... vocab"], penalty: float
) -> Float[Tensor, "... vocab"]:
    """Divide positive logits of seen ids by the penalty, and multiply negative ones."""
    lowered = torch.where(logits > 0, logits / penalty, logits * penalty)
    # An infinite logit would leave nothing to sample from.
    largest = torch.finfo(logits.dtype).max
    return torch.where(seen, lowered.clamp(-largest, largest), logits)


def uniforms(seeds: Sequence[int], indices: Sequence[int]) -> list[float]:
    """Return the 32-bit numbers in [0, 1) that decide new id `indices[i]` of the text of seed i."""
    bits = random_uint64(seeds, STREAM, np.array(indices, np.uint64)) >> np.uint64(32)
    numbers: list[float] = (bits.astype(np.float64) * 2.0**-32).tolist()
    return numbers


def not_finite() -> CheckpointError:
    return CheckpointError(
        "the model's logits for the next id are not finite: its weights are damaged or its "
        "training diverged; use an earlier checkpoint"
    )
