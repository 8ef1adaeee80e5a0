"""Sampling the next id: the rules of a `Sampler` on logits (..., vocab_size), then one id a row.

An id that a rule leaves out gets -inf. A sample is decided by one number in [0, 1), computed from
the seed and the position: no state, no order of sampling. Top-k and top-p find the likeliest ids
without sorting the vocabulary where few make up the sum, and compare values only, never the order
in which torch returns equals.
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
"""Of the random numbers of texts. Any number, as long as it never changes: samples depend on it."""

# So many ids hold nearly all of a trained model's probability; at a high temperature, so many.
_NUM_FIRST, _NUM_MORE = 64, 4_096


def sample(
    sampler: Sampler,
    logits: Float[Tensor, "... vocab"],
    uniforms: Float[Tensor, "..."],
    seen: Bool[Tensor, "... vocab"] | None = None,
) -> Int[Tensor, "..."]:
    """One id for each row, NO_ID where its logits are not finite.

    uniforms: a number in [0, 1) for each row: the id is where it falls in the cumulative
        distribution, in id order.
    seen: which ids the text of each row holds, for the repetition penalty.
    """
    logits = logits.float()
    if logits.device.type == "mps":
        # It has no float64, in which sums are made below.
        logits, seen = logits.cpu(), None if seen is None else seen.cpu()
    is_finite = logits.amax(dim=-1).isfinite()
    logits = apply_rules(sampler, logits, seen)
    if sampler.temperature == 0:
        return torch.where(is_finite, logits.argmax(dim=-1), NO_ID)
    return torch.where(is_finite, _invert(logits, uniforms), NO_ID)


def apply_rules(
    sampler: Sampler,
    logits: Float[Tensor, "... vocab"],
    seen: Bool[Tensor, "... vocab"] | None = None,
) -> Float[Tensor, "... vocab"]:
    """What is sampled from, up to a constant; at temperature 0 the best of it is taken."""
    if seen is not None and sampler.needs_history:
        logits = penalize(logits, seen, sampler.repetition_penalty)
    if sampler.temperature == 0:
        return logits
    if sampler.temperature != 1:
        # With the largest at 0, dividing by a tiny temperature cannot overflow upwards.
        logits = (logits - logits.amax(dim=-1, keepdim=True)) / sampler.temperature
    if sampler.top_k is not None:
        logits = keep_top_k(logits, sampler.top_k)
    if sampler.top_p < 1:
        logits = keep_top_p(logits, sampler.top_p)
    if sampler.min_p > 0:
        threshold = logits.amax(dim=-1, keepdim=True) + math.log(sampler.min_p)
        logits = logits.masked_fill(logits < threshold, -torch.inf)
    return logits


def penalize(
    logits: Float[Tensor, "... vocab"], seen: Bool[Tensor, "... vocab"], penalty: float
) -> Float[Tensor, "... vocab"]:
    """Divide positive logits of seen ids by the penalty, multiply negative ones."""
    lowered = torch.where(logits > 0, logits / penalty, logits * penalty)
    # An infinite logit would leave nothing to sample from.
    largest = torch.finfo(logits.dtype).max
    return torch.where(seen, lowered.clamp(-largest, largest), logits)


def keep_top_k(logits: Float[Tensor, "... vocab"], k: int) -> Float[Tensor, "... vocab"]:
    """The k most probable ids of each row; of equals at the threshold, the lower ones."""
    if k >= logits.shape[-1]:
        return logits
    threshold = logits.topk(k, dim=-1).values[..., -1:]
    return _keep_best(logits, threshold, torch.full_like(threshold, k, dtype=torch.long))


def keep_top_p(logits: Float[Tensor, "... vocab"], p: float) -> Float[Tensor, "... vocab"]:
    """The fewest most probable ids of each row that sum to at least p."""
    rows = logits.reshape(-1, logits.shape[-1])
    best = rows.amax(dim=-1, keepdim=True)
    target = p * torch.exp(rows - best).sum(dim=-1, keepdim=True, dtype=torch.float64)
    threshold, num_kept = torch.empty_like(best), torch.empty_like(best, dtype=torch.long)
    left = torch.arange(len(rows), device=rows.device)
    for num in (_NUM_FIRST, _NUM_MORE, rows.shape[-1]):
        ordered = rows[left].topk(min(num, rows.shape[-1]), dim=-1).values
        # In float64, where sums hardly depend on their order.
        sums = torch.exp(ordered - best[left]).double().cumsum(dim=-1)
        num_short = (sums < target[left]).sum(dim=-1, keepdim=True)
        last = num_short.clamp(max=sums.shape[-1] - 1)
        threshold[left], num_kept[left] = ordered.gather(-1, last), last + 1
        left = left[num_short[:, 0] == sums.shape[-1]]
        if not len(left):
            break
    return _keep_best(rows, threshold, num_kept).reshape(logits.shape)


def uniforms(seeds: Sequence[int], indices: Sequence[int]) -> list[float]:
    """The numbers in [0, 1), of 32 bits each, that decide new id `indices[i]` of seed i's text."""
    bits = random_uint64(seeds, STREAM, np.array(indices, np.uint64)) >> np.uint64(32)
    numbers: list[float] = (bits.astype(np.float64) * 2.0**-32).tolist()
    return numbers


def not_finite() -> CheckpointError:
    return CheckpointError(
        "the model's logits for the next id are not finite: its weights are damaged or its "
        "training diverged; use an earlier checkpoint"
    )


def _invert(logits: Tensor, uniforms: Tensor) -> Tensor:
    """The first id whose cumulative probability is more than the row's number.

    Summed in float64: the last sum times a number below 1 of 32 bits is less than the sum then, so
    that no id without probability is ever found.
    """
    weights = torch.exp(logits - logits.amax(dim=-1, keepdim=True))
    sums = weights.cumsum(dim=-1, dtype=torch.float64)
    marks = uniforms.to(sums.device, torch.float64).unsqueeze(-1) * sums[..., -1:]
    return torch.searchsorted(sums, marks, right=True).squeeze(-1)


def _keep_best(logits: Tensor, threshold: Tensor, num_kept: Tensor) -> Tensor:
    """The `num_kept` best of each row, the last of which has the value `threshold`."""
    at_least = logits >= threshold
    if logits.device.type == "cpu" and torch.equal(at_least.sum(-1, keepdim=True), num_kept):
        return logits.masked_fill(~at_least, -torch.inf)
    # More ids than wanted have the value at the threshold: the first ones in id order remain.
    ties = logits == threshold
    room = num_kept - (logits > threshold).sum(-1, keepdim=True)
    return logits.masked_fill(~at_least | (ties & (ties.cumsum(-1) > room)), -torch.inf)
