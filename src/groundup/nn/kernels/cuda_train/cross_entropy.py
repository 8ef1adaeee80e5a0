"""Cross-entropy of a chunk of logits and its gradient in one CUDA kernel. See
`linear_cross_entropy` for the formula and for the portable implementation."""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

# A thread loads 16 bytes at a time. A row of four or more blocks has enough loads in flight, and is
# still cached when it is read again.
_WIDTH, _BLOCKS, _MAX_LANES = 8, 4, 1024
# exp2 is one instruction, exp four.
_LOG2_E, _LN_2 = tl.constexpr(1.0 / math.log(2.0)), tl.constexpr(math.log(2.0))


def chunk_loss_and_gradient(
    logits: Tensor,
    targets: Tensor,
    losses: Tensor,
    z_loss: float,
    mtp_targets: Tensor | None = None,
    mtp_weight: Tensor | None = None,
    rounded: Tensor | None = None,
    rounded_factor: float = 1.0,
) -> None:
    """Write the loss of each row to `losses`, and overwrite the logits with their gradient.

    rounded: receives gradient · `rounded_factor` in float8 (e5m2)."""
    num_rows, vocab_size = logits.shape
    lanes = triton.next_power_of_2(vocab_size // (_BLOCKS * _WIDTH) + 1) // 2
    lanes = min(max(lanes, 32), _MAX_LANES)
    _loss_and_gradient[(num_rows,)](
        logits, targets, losses,
        targets if mtp_targets is None else mtp_targets,
        losses if mtp_weight is None else mtp_weight,
        logits if rounded is None else rounded,
        vocab_size, logits.stride(0), z_loss, rounded_factor,
        HAS_MTP=mtp_targets is not None, ROUNDS=rounded is not None,
        LANES=lanes, WIDTH=_WIDTH, num_warps=lanes // 32,
    )  # fmt: skip


@triton.jit
def _loss_and_gradient(
    logits, targets, losses, mtp_targets, mtp_weight, rounded, vocab_size, row_stride, z_loss,
    rounded_factor, HAS_MTP: tl.constexpr, ROUNDS: tl.constexpr,
    LANES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row_index = tl.program_id(0).to(tl.int64)
    row = logits + row_index * row_stride
    rounded_row = rounded + row_index * vocab_size
    index = tl.arange(0, LANES)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    # Every lane keeps its own maximum and total; they are reduced once, after the last block.
    top = tl.full([LANES], -1e30, tl.float32)
    total = tl.zeros([LANES], tl.float32)
    for begin in range(0, vocab_size, LANES * WIDTH):
        inside = begin + index < vocab_size
        x = tl.load(row + begin + index, mask=inside, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(x, 1) * _LOG2_E)
        weights = tl.exp2(x * _LOG2_E - higher[:, None])
        total = total * tl.exp2(top - higher) + tl.sum(weights, 1)
        top = higher
    highest = tl.max(top)
    log2_z = highest + tl.log2(tl.sum(total * tl.exp2(top - highest)))
    log_z = log2_z * _LN_2
    # d/dx of log Z + z (log Z)² is softmax · (1 + 2 z log Z).
    weight = 1.0 + 2.0 * z_loss * log_z
    target = tl.load(targets + row_index)
    of_target = tl.load(row + target).to(tl.float32)
    if HAS_MTP:
        mtp_target = tl.load(mtp_targets + row_index)
        mtp_scale = tl.where(mtp_target < 0, 0.0, tl.load(mtp_weight))
        weight += mtp_scale
        mtp_target = tl.where(mtp_target < 0, target, mtp_target)
        of_mtp = tl.load(row + mtp_target).to(tl.float32)
    tl.store(losses + row_index, log_z - of_target + z_loss * log_z * log_z)
    # All threads must have read the targets' logits above before any overwrites them below.
    tl.debug_barrier()
    for begin in range(0, vocab_size, LANES * WIDTH):
        inside = begin + index < vocab_size
        x = tl.load(row + begin + index, mask=inside, other=0.0).to(tl.float32)
        gradient = weight * tl.exp2(x * _LOG2_E - log2_z)
        # .cs: no thread reads it until all other rows are written.
        tl.store(row + begin + index, gradient, mask=inside, cache_modifier=".cs")
        if ROUNDS:
            small = (gradient * rounded_factor).to(tl.float8e5)
            tl.store(rounded_row + begin + index, small, mask=inside, cache_modifier=".cs")
    # The targets' gradients differ from the others: overwrite what the loop stored.
    tl.debug_barrier()
    less = 1.0
    if HAS_MTP:
        is_same = mtp_target == target
        more = mtp_scale + tl.where(is_same, 1.0, 0.0)
        gradient = weight * tl.exp2(of_mtp * _LOG2_E - log2_z) - more
        _write(gradient, row, rounded_row, mtp_target, vocab_size, rounded_factor, ROUNDS)
        less += tl.where(is_same, mtp_scale, 0.0)
    gradient = weight * tl.exp2(of_target * _LOG2_E - log2_z) - less
    _write(gradient, row, rounded_row, target, vocab_size, rounded_factor, ROUNDS)


@triton.jit
def _write(gradient, row, rounded_row, target, vocab_size, rounded_factor, ROUNDS: tl.constexpr):
    # An invalid id must not write outside the row.
    exists = (target >= 0) & (target < vocab_size)
    tl.store(row + target, gradient, mask=exists)
    if ROUNDS:
        tl.store(rounded_row + target, (gradient * rounded_factor).to(tl.float8e5), mask=exists)
