"""The search for the least weight of a set of likeliest ids, and the cut there; see `sampling`."""

from __future__ import annotations

import triton
import triton.language as tl

from groundup.nn.kernels.cuda_decode.launch import begin, wait

# Columns of a row's state: whole numbers and floats.
ID, POSITION, COUNT, KEY, TOP_K, NUM_WHOLE = range(6)
TEMPERATURE, TOP_P, LOG_MIN_P, NUM_FLOATS = range(4)
# The same for kernels: where a row begins, and its columns.
_WHOLE, _FLOATS = tl.constexpr(NUM_WHOLE), tl.constexpr(NUM_FLOATS)
_TOP_K, _TOP_P, _LOG_MIN_P = tl.constexpr(TOP_K), tl.constexpr(TOP_P), tl.constexpr(LOG_MIN_P)
# A launch looks at so many levels, and so the bits of a weight, of which there are 30, take so
# many launches.
LEVELS = tl.constexpr(8)
NUM_ROUNDS = 10
# Just above the bits of 1.0, the greatest weight.
_TOP_BITS = tl.constexpr(0x3F800001)


@triton.jit
def load_segment(numbers, row, segment, other, VOCAB: tl.constexpr, SEGMENT: tl.constexpr):
    """A segment of a row of logits or weights."""
    column = segment * SEGMENT + tl.arange(0, SEGMENT)
    return tl.load(numbers + row.to(tl.int64) * VOCAB + column, mask=column < VOCAB, other=other)


@triton.jit
def of_segments(numbers, row, other, NUM: tl.constexpr, SEGMENTS: tl.constexpr):
    """What a row's segments left, a number each."""
    index = tl.arange(0, SEGMENTS)
    return tl.load(numbers + row * NUM + index, mask=index < NUM, other=other)


@triton.jit
def bits_of(weight):
    """Integers in the order of weights, which are never negative."""
    return weight.to(tl.int32, bitcast=True)


@triton.jit
def _is_active(whole, floats, row, COUNTS: tl.constexpr, VOCAB: tl.constexpr):
    """Whether the row has the rule: top-k if it counts ids, else top-p."""
    top_k = tl.load(whole + row * _WHOLE + _TOP_K)
    is_active = (top_k > 0) & (top_k < VOCAB)
    if not COUNTS:
        is_active = tl.load(floats + row * _FLOATS + _TOP_P) < 1.0
    return is_active


@triton.jit
def _found(sums, bounds, reached, row, segment, NUM: tl.constexpr, SEGMENTS: tl.constexpr):
    """Between which bits the edge lies after a round, what lies above, and what is to be reached;
    and whether the segment has anything between the bounds.

    From the lower bound on the target is reached, from the upper one on it is not.
    """
    low = tl.load(bounds + row * 2)
    high = tl.load(bounds + row * 2 + 1)
    above = tl.load(reached + row * 2)
    target = tl.load(reached + row * 2 + 1)
    has_any = False
    if high - low > 1:
        step = (high - low + LEVELS - 1) // LEVELS
        index = tl.arange(0, SEGMENTS)[:, None]
        level = tl.arange(0, LEVELS)
        sums += row * NUM * LEVELS
        parts = tl.load(sums + index * LEVELS + level[None, :], mask=index < NUM, other=0.0)
        total = above + tl.sum(parts, axis=0)
        # Levels at or beyond the upper bound are no news: they do not reach the target.
        is_reached = (level > 0) & (total >= target) & (low + level * step < high)
        count = tl.sum(is_reached.to(tl.int32), axis=0)
        low += count * step
        if low + step < high:
            high = low + step
            above = tl.sum(tl.where(level == count + 1, total, 0.0), axis=0)
        # The same sum from two levels on: nothing lies between them.
        own = tl.load(sums + segment * LEVELS + level)
        from_low = tl.sum(tl.where(level == count, own, 0.0), axis=0)
        from_high = tl.sum(tl.where(level == count + 1, own, 0.0), axis=0)
        has_any = from_low != from_high
    return low, high, above, target, has_any


@triton.jit
def narrow(
    weights,
    masses,
    whole,
    floats,
    old_sums,
    old_bounds,
    old_reached,
    sums,
    bounds,
    reached,
    COUNTS: tl.constexpr,
    FIRST: tl.constexpr,
    VOCAB: tl.constexpr,
    NUM: tl.constexpr,
    SEGMENT: tl.constexpr,
    SEGMENTS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A round of the search: what a segment has from each of eight levels up to the upper bound."""
    wait(EARLY)
    begin(EARLY)
    segment, row = tl.program_id(0), tl.program_id(1)
    if _is_active(whole, floats, row, COUNTS, VOCAB):
        if FIRST:
            low = tl.full((), 0, tl.int32)
            high = tl.full((), _TOP_BITS, tl.int32)
            above = tl.full((), 0.0, tl.float32)
            has_any = tl.full((), True, tl.int1)
            if COUNTS:
                target = tl.load(whole + row * _WHOLE + _TOP_K).to(tl.float32)
            else:
                mass = tl.sum(of_segments(masses, row, 0.0, NUM, SEGMENTS), axis=0)
                target = mass * tl.load(floats + row * _FLOATS + _TOP_P)
        else:
            low, high, above, target, has_any = _found(
                old_sums, old_bounds, old_reached, row, segment, NUM, SEGMENTS
            )
        if segment == 0:
            tl.store(bounds + row * 2, low)
            tl.store(bounds + row * 2 + 1, high)
            tl.store(reached + row * 2, above)
            tl.store(reached + row * 2 + 1, target)
        if high - low > 1:
            level = tl.arange(0, LEVELS)
            total = tl.zeros((LEVELS,), dtype=tl.float32)
            if has_any:
                step = (high - low + LEVELS - 1) // LEVELS
                weight = load_segment(weights, row, segment, -1.0, VOCAB, SEGMENT)
                bits = bits_of(weight)
                added = tl.where(bits < high, 1.0 if COUNTS else weight, 0.0)
                is_above = bits[None, :] >= (low + level * step)[:, None]
                total = tl.sum(tl.where(is_above, added[None, :], 0.0), axis=1)
            tl.store(sums + (row * NUM + segment) * LEVELS + level, total)


@triton.jit
def count_ties(
    weights,
    masses,
    whole,
    floats,
    sums,
    bounds,
    reached,
    ties,
    COUNTS: tl.constexpr,
    VOCAB: tl.constexpr,
    NUM: tl.constexpr,
    SEGMENT: tl.constexpr,
    SEGMENTS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """How many ids of each segment weigh just as much as the edge."""
    wait(EARLY)
    begin(EARLY)
    segment, row = tl.program_id(0), tl.program_id(1)
    if _is_active(whole, floats, row, COUNTS, VOCAB):
        edge, _, _, _, _ = _found(sums, bounds, reached, row, segment, NUM, SEGMENTS)
        bits = bits_of(load_segment(weights, row, segment, -1.0, VOCAB, SEGMENT))
        tl.store(ties + row * NUM + segment, tl.sum((bits == edge).to(tl.int32), axis=0))


@triton.jit
def cut(
    weights,
    masses,
    whole,
    floats,
    sums,
    bounds,
    reached,
    ties,
    COUNTS: tl.constexpr,
    VOCAB: tl.constexpr,
    NUM: tl.constexpr,
    SEGMENT: tl.constexpr,
    SEGMENTS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Let only what lies above the edge stay, and at it the first ids that are still needed."""
    wait(EARLY)
    begin(EARLY)
    segment, row = tl.program_id(0), tl.program_id(1)
    weight = load_segment(weights, row, segment, -1.0, VOCAB, SEGMENT)
    bits = bits_of(weight)
    stays = bits >= 0
    if _is_active(whole, floats, row, COUNTS, VOCAB):
        edge, _, above, target, _ = _found(sums, bounds, reached, row, segment, NUM, SEGMENTS)
        needed = target - above
        if not COUNTS:
            needed = tl.ceil(needed / tl.maximum(edge.to(tl.float32, bitcast=True), 1e-38))
        # So many that the number is one for certain, and no more than there are.
        needed = tl.minimum(tl.maximum(needed, 1.0), VOCAB).to(tl.int32)
        counts = of_segments(ties, row, 0, NUM, SEGMENTS)
        before = tl.sum(tl.where(tl.arange(0, SEGMENTS) < segment, counts, 0), axis=0)
        is_tie = bits == edge
        rank = before + tl.cumsum(is_tie.to(tl.int32), axis=0)
        stays = (bits > edge) | (is_tie & (rank <= needed))
    if not COUNTS:
        # Of all that are as likely as min-p asks, and not one less, so that no tie is cut.
        stays &= bits >= bits_of(tl.exp(tl.load(floats + row * _FLOATS + _LOG_MIN_P)))
    kept = tl.where(stays, weight, 0.0)
    column = segment * SEGMENT + tl.arange(0, SEGMENT)
    tl.store(weights + row.to(tl.int64) * VOCAB + column, kept, mask=column < VOCAB)
    tl.store(masses + row * NUM + segment, tl.sum(kept, axis=0))
