"""Sample the next id: apply the rules of a `Sampler` to logits (..., vocab_size), then pick an id.

A rule sets the logits of removed ids to -inf. Each sample is decided by one number in [0, 1), a
function of seed and position: there is no state, and the order of sampling does not matter. Top-k
and top-p avoid sorting the vocabulary if few ids make up the sum, and only compare values: the
order in which torch returns ties does not matter.
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

# Ids that hold nearly all of the probability of a trained model, usually and at high temperatures.
_NUM_FIRST, _NUM_MORE = 64, 4_096


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
    logits = apply_rules(sampler, logits, seen)
    if sampler.temperature == 0:
        return torch.where(is_finite, logits.argmax(dim=-1), NO_ID)
    return torch.where(is_finite, _invert(logits, uniforms), NO_ID)


def apply_rules(
    sampler: Sampler,
    logits: Float[Tensor, "... vocab"],
    seen: Bool[Tensor, "... vocab"] | None = None,
) -> Float[Tensor, "... vocab"]:
    """Return the logits to sample from, up to a constant; at temperature 0, take their argmax."""
    if seen is not None and sampler.needs_history:
        logits = penalize(logits, seen, sampler.repetition_penalty)
    if sampler.temperature == 0:
        return logits
    if sampler.temperature != 1:
        # Subtract the maximum first: dividing by a tiny temperature then cannot overflow to +inf.
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
    """Divide positive logits of seen ids by the penalty, and multiply negative ones."""
    lowered = torch.where(logits > 0, logits / penalty, logits * penalty)
    # An infinite logit would leave nothing to sample from.
    largest = torch.finfo(logits.dtype).max
    return torch.where(seen, lowered.clamp(-largest, largest), logits)


def keep_top_k(logits: Float[Tensor, "... vocab"], k: int) -> Float[Tensor, "... vocab"]:
    """Keep the k most probable ids of each row; ties at the threshold go to lower ids."""
    if k >= logits.shape[-1]:
        return logits
    threshold = logits.topk(k, dim=-1).values[..., -1:]
    return _keep_best(logits, threshold, torch.full_like(threshold, k, dtype=torch.long))


def keep_top_p(logits: Float[Tensor, "... vocab"], p: float) -> Float[Tensor, "... vocab"]:
    """Keep the smallest set of most probable ids of each row that sums to at least p."""
    rows = logits.reshape(-1, logits.shape[-1])
    best = rows.amax(dim=-1, keepdim=True)
    target = p * torch.exp(rows - best).sum(dim=-1, keepdim=True, dtype=torch.float64)
    threshold, num_kept = torch.empty_like(best), torch.empty_like(best, dtype=torch.long)
    left = torch.arange(len(rows), device=rows.device)
    for num in (_NUM_FIRST, _NUM_MORE, rows.shape[-1]):
        ordered = rows[left].topk(min(num, rows.shape[-1]), dim=-1).values
        # In float64, where sums hardly depend on the order.
        sums = torch.exp(ordered - best[left]).double().cumsum(dim=-1)
        num_short = (sums < target[left]).sum(dim=-1, keepdim=True)
        last = num_short.clamp(max=sums.shape[-1] - 1)
        threshold[left], num_kept[left] = ordered.gather(-1, last), last + 1
        left = left[num_short[:, 0] == sums.shape[-1]]
        if not len(left):
            break
    return _keep_best(rows, threshold, num_kept).reshape(logits.shape)


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


def _invert(logits: Tensor, uniforms: Tensor) -> Tensor:
    """Return the first id whose cumulative probability exceeds the row's number.

    Sums are float64: the total times a 32-bit number below 1 is then less than the total, so an id
    with zero probability is never chosen.
    """
    weights = torch.exp(logits - logits.amax(dim=-1, keepdim=True))
    sums = weights.cumsum(dim=-1, dtype=torch.float64)
    marks = uniforms.to(sums.device, torch.float64).unsqueeze(-1) * sums[..., -1:]
    return torch.searchsorted(sums, marks, right=True).squeeze(-1)


def _keep_best(logits: Tensor, threshold: Tensor, num_kept: Tensor) -> Tensor:
    """Keep the `num_kept` largest logits of each row; `threshold` is the smallest of them."""
    at_least = logits >= threshold
    if logits.device.type == "cpu" and torch.equal(at_least.sum(-1, keepdim=True), num_kept):
        return logits.masked_fill(~at_least, -torch.inf)
    # Too many ids tie at the threshold: keep the first ones in id order.
    ties = logits == threshold
    room = num_kept - (logits > threshold).sum(-1, keepdim=True)
    return logits.masked_fill(~at_least | (ties & (ties.cumsum(-1) > room)), -torch.inf)
