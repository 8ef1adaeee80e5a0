"""Cross-entropy of a chunk of logits and its gradient in one kernel, for CUDA. See
`linear_cross_entropy` for the formula and for the form that runs everywhere."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

# A thread takes 16 bytes at a time; more lanes spill registers, fewer leave loads waiting. Of long
# rows fewer at once, so that the second pass still finds them in the cache.
_LANES, _LANES_OF_LONG = 256, 512
_WIDTH = 8
_LONG = 32_768


def chunk_loss_and_gradient(
    logits: Tensor,
    targets: Tensor,
    losses: Tensor,
    soft_cap: float | None,
    z_loss: float,
    scale: float,
    later: Tensor | None = None,
    later_weight: Tensor | None = None,
    rounded: Tensor | None = None,
    rounded_factor: float = 1.0,
) -> None:
    """Write the loss of each row into `losses`, and over the logits `scale` times its gradient.

    rounded: gets that times `rounded_factor` as well, in float8 (e5m2)."""
    num_rows, vocab_size = logits.shape
    lanes = _LANES_OF_LONG if vocab_size > _LONG else _LANES
    _loss_and_gradient[(num_rows,)](
        logits,
        targets,
        losses,
        targets if later is None else later,
        losses if later_weight is None else later_weight,
        logits if rounded is None else rounded,
        vocab_size,
        logits.stride(0),
        soft_cap or 1.0,
        z_loss,
        scale,
        rounded_factor,
        HAS_CAP=soft_cap is not None,
        HAS_LATER=later is not None,
        ROUNDS=rounded is not None,
        LANES=lanes,
        WIDTH=_WIDTH,
        num_warps=lanes // 32,
    )


@triton.jit
def _capped(x, cap):
    # tanh by way of the logistic function, which has a fast instruction.
    return cap * (2.0 * tl.sigmoid(2.0 * x / cap) - 1.0)


@triton.jit
def _loss_and_gradient(
    logits,
    targets,
    losses,
    later,
    later_weight,
    rounded,
    vocab_size,
    row_stride,
    cap,
    z_loss,
    scale,
    rounded_factor,
    HAS_CAP: tl.constexpr,
    HAS_LATER: tl.constexpr,
    ROUNDS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row_index = tl.program_id(0).to(tl.int64)
    row = logits + row_index * row_stride
    target = tl.load(targets + row_index)
    index = tl.arange(0, LANES)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    # Every lane keeps its own maximum and total; they meet once, after the last block.
    top = tl.full([LANES], -1e30, tl.float32)
    total = tl.zeros([LANES], tl.float32)
    for begin in range(0, vocab_size, LANES * WIDTH):
        inside = begin + index < vocab_size
        x = tl.load(row + begin + index, mask=inside, other=-float("inf")).to(tl.float32)
        if HAS_CAP:
            x = tl.where(inside, _capped(x, cap), -float("inf"))
        higher = tl.maximum(top, tl.max(x, 1))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(x - higher[:, None]), 1)
        top = higher
    highest = tl.max(top)
    logsumexp = highest + tl.log(tl.sum(total * tl.exp(top - highest)))
    chosen = tl.load(row + target).to(tl.float32)
    if HAS_CAP:
        chosen = _capped(chosen, cap)
    tl.store(losses + row_index, logsumexp - chosen + z_loss * logsumexp * logsumexp)
    # d/dx of log Z + z (log Z)² is softmax · (1 + 2 z log Z).
    weight = scale * (1.0 + 2.0 * z_loss * logsumexp)
    if HAS_LATER:
        later_target = tl.load(later + row_index)
        later_scale = tl.where(later_target < 0, 0.0, scale * tl.load(later_weight))
        weight += later_scale
    # The target's logit is read above before any thread writes over it below.
    tl.debug_barrier()
    for begin in range(0, vocab_size, LANES * WIDTH):
        inside = begin + index < vocab_size
        x = tl.load(row + begin + index, mask=inside, other=0.0).to(tl.float32)
        if HAS_CAP:
            x = _capped(x, cap)
        gradient = weight * tl.exp(x - logsumexp)
        gradient -= tl.where(begin + index == target, scale, 0.0)
        if HAS_LATER:
            gradient -= tl.where(begin + index == later_target, later_scale, 0.0)
        if HAS_CAP:
            gradient *= 1.0 - (x / cap) * (x / cap)
        # Nobody reads it before all other rows are written.
        tl.store(row + begin + index, gradient, mask=inside, cache_modifier=".cs")
        if ROUNDS:
            small = (gradient * rounded_factor).to(tl.float8e5)
            first = rounded + row_index * vocab_size
            tl.store(first + begin + index, small, mask=inside, cache_modifier=".cs")
