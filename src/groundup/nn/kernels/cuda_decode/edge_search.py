"""The search for the least weight of a set of likeliest ids, the edge of the set; see `sampling`.

Weights are compared by their bits, as whole numbers. The launch that makes them adds all that may
matter to narrow bins (`fill`), in whole numbers, whose sum is the same in any order. `find` adds up
the bins of a row until the target is reached, a count or a mass; `split` lists the ids of that bin.
Those are few, and `edge_of` compares each with each, unless many are nearly the same: then it
closes in on the edge by looking at their segments again.
"""

from __future__ import annotations

import triton
import triton.language as tl

from groundup.nn.kernels.cuda_decode.launch import begin, wait

# Columns of a row's state: whole numbers and floats.
ID, POSITION, COUNT, KEY, TOP_K, NUM_WHOLE = range(6)
TEMPERATURE, TOP_P, LOG_MIN_P, PENALTY, NUM_FLOATS = range(5)
# The same for kernels: where a row begins, and its columns.
_WHOLE, _FLOATS = tl.constexpr(NUM_WHOLE), tl.constexpr(NUM_FLOATS)
_TOP_K, _TOP_P = tl.constexpr(TOP_K), tl.constexpr(TOP_P)
# Just above the bits of 1.0, the greatest weight.
_TOP_BITS = tl.constexpr(0x3F800001)
# For masses 256 bins for each factor of two, from 1 down to 2^-32; the last is for what is less,
# and not filled. For counts, which may need the least of weights, 64 down to the smallest number,
# and the last is for zero.
NUM_BINS = tl.constexpr(8192)
_MASS_SHIFT, _COUNT_SHIFT = tl.constexpr(15), tl.constexpr(17)
# Bins that are emptied at once, and added up.
_CHUNK, _SPAN = tl.constexpr(1024), tl.constexpr(4096)
# A weight of 1 in a bin.
_ONE = tl.constexpr(1 << 40)
# Ids of a bin that can be listed.
MOST_LISTED = tl.constexpr(64)
# Of each row what was found: the bits where the bin begins and ends, and what lies above.
NUM_FOUND = 3
_FOUND, _HIGH, _ABOVE = tl.constexpr(NUM_FOUND), tl.constexpr(1), tl.constexpr(2)
_LEVELS = tl.constexpr(16)
_NONE = tl.constexpr(0x7FFFFFFF)


@triton.jit
def load_segment(numbers, row, segment, other, VOCAB: tl.constexpr, SEGMENT: tl.constexpr):
    """A segment of a row of logits or weights."""
    column = segment * SEGMENT + tl.arange(0, SEGMENT)
    return tl.load(numbers + row.to(tl.int64) * VOCAB + column, mask=column < VOCAB, other=other)


@triton.jit
def penalized(value, is_seen, penalty):
    """Positive logits of ids that the text holds divided by the penalty, negative ones multiplied.

    What is not finite stays so; nothing else becomes infinite.
    """
    lowered = tl.where(value > 0, value / penalty, value * penalty)
    lowered = tl.minimum(tl.maximum(lowered, -3.4028234663852886e38), 3.4028234663852886e38)
    is_finite = (value > float("-inf")) & (value < float("inf"))
    return tl.where(is_seen & is_finite, lowered, value)


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
def is_active(whole, floats, row, COUNTS: tl.constexpr, VOCAB: tl.constexpr):
    """Whether the row has the rule: top-k if it counts ids, else top-p."""
    top_k = tl.load(whole + row * _WHOLE + _TOP_K)
    active = (top_k > 0) & (top_k < VOCAB)
    if not COUNTS:
        active = tl.load(floats + row * _FLOATS + _TOP_P) < 1.0
    return active


@triton.jit
def _target(
    whole, floats, masses, row, COUNTS: tl.constexpr, NUM: tl.constexpr, SEGMENTS: tl.constexpr
):
    """What the set must reach."""
    if COUNTS:
        target = tl.load(whole + row * _WHOLE + _TOP_K).to(tl.float32)
    else:
        mass = tl.sum(of_segments(masses, row, 0.0, NUM, SEGMENTS), axis=0)
        target = mass * tl.load(floats + row * _FLOATS + _TOP_P)
    return target


@triton.jit
def fill(weight, bins, row, spare, COUNTS: tl.constexpr, VOCAB: tl.constexpr):
    """Add weights, or their number, to the bins of the row, which are empty.

    spare: a mass that is not needed to reach the target.
    """
    bits = bits_of(weight)
    shift: tl.constexpr = _COUNT_SHIFT if COUNTS else _MASS_SHIFT
    number = (_TOP_BITS - 1 - bits) >> shift
    counts = (bits > 0) & (bits < _TOP_BITS) & (number < NUM_BINS - 1)
    if COUNTS:
        added = (weight > 0).to(tl.int64)
    else:
        added = (weight * _ONE).to(tl.int64)
        # All ids that have so little have no more than that together; a tenth of it is left for
        # what was rounded.
        counts &= weight > 0.9 * spare / VOCAB
    tl.atomic_add(bins + row * NUM_BINS + number, added, mask=counts, sem="relaxed")


@triton.jit
def find(
    masses,
    whole,
    floats,
    bins,
    found,
    COUNTS: tl.constexpr,
    VOCAB: tl.constexpr,
    NUM: tl.constexpr,
    SEGMENT: tl.constexpr,
    SEGMENTS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The first bin, from the greatest weights on, with which the target is reached."""
    wait(EARLY)
    begin(EARLY)
    row = tl.program_id(0)
    if is_active(whole, floats, row, COUNTS, VOCAB):
        shift: tl.constexpr = _COUNT_SHIFT if COUNTS else _MASS_SHIFT
        least: tl.constexpr = 1 if COUNTS else -(NUM_BINS - 1 << _MASS_SHIFT) + _TOP_BITS
        target = _target(whole, floats, masses, row, COUNTS, NUM, SEGMENTS)
        aim = (target if COUNTS else target * _ONE).to(tl.int64)
        above = tl.full((), 0, tl.int64)
        start = tl.full((), 0, tl.int32)
        number = tl.full((), _NONE, tl.int32)
        while (number == _NONE) & (start < NUM_BINS):
            index = start + tl.arange(0, _SPAN)
            part = tl.load(bins + row * NUM_BINS + index)
            sums = above + tl.cumsum(part, axis=0)
            is_reached = sums >= aim
            number = tl.min(tl.where(is_reached, index, _NONE), axis=0)
            above += tl.sum(tl.where(is_reached, 0, part), axis=0)
            start += _SPAN
        number = tl.minimum(number, NUM_BINS - 1)
        found += row * _FOUND
        is_last = number == NUM_BINS - 1
        tl.store(found, tl.where(is_last, 0, -((number + 1) << shift) + _TOP_BITS))
        tl.store(found + _HIGH, tl.where(is_last, least, -(number << shift) + _TOP_BITS))
        tl.store(found + _ABOVE, above)


@triton.jit
def split(
    weights,
    whole,
    floats,
    bins,
    found,
    above,
    num_between,
    num_listed,
    listed,
    COUNTS: tl.constexpr,
    VOCAB: tl.constexpr,
    NUM: tl.constexpr,
    SEGMENT: tl.constexpr,
    SEGMENTS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Of a segment the mass above the bin that was found and the number of ids in it; these are
    listed, in any order, with their bits."""
    wait(EARLY)
    begin(EARLY)
    segment, row = tl.program_id(0), tl.program_id(1)
    if is_active(whole, floats, row, COUNTS, VOCAB):
        low = tl.load(found + row * _FOUND).to(tl.int32)
        high = tl.load(found + row * _FOUND + _HIGH).to(tl.int32)
        weight = load_segment(weights, row, segment, -1.0, VOCAB, SEGMENT)
        bits = bits_of(weight)
        is_between = ((bits >= low) & (bits < high)).to(tl.int32)
        num = tl.sum(is_between, axis=0)
        tl.store(above + row * NUM + segment, tl.sum(tl.where(bits >= high, weight, 0.0), axis=0))
        tl.store(num_between + row * NUM + segment, num)
        if num > 0:
            first = tl.atomic_add(num_listed + row, num, sem="relaxed")
            place = first + tl.cumsum(is_between, axis=0) - 1
            column = segment * SEGMENT + tl.arange(0, SEGMENT)
            fits = (is_between > 0) & (place < MOST_LISTED)
            entry = listed + (row * MOST_LISTED + place) * 2
            tl.store(entry, bits, mask=fits)
            tl.store(entry + 1, column, mask=fits)
        # Nothing needs the bins any more; the next search finds them empty.
        for start in range(segment * _CHUNK, NUM_BINS, NUM * _CHUNK):
            number = start + tl.arange(0, _CHUNK)
            tl.store(bins + row * NUM_BINS + number, tl.zeros((_CHUNK,), dtype=tl.int64))


@triton.jit
def is_kept(bits, column, edge, last):
    """Those above the edge, and at it the ids up to the last one that is needed."""
    return (bits > edge) | ((bits == edge) & (column <= last))


@triton.jit
def edge_of(
    weights, masses, whole, floats, found, num_between, listed, row,
    COUNTS: tl.constexpr, VOCAB: tl.constexpr, NUM: tl.constexpr,
    SEGMENT: tl.constexpr, SEGMENTS: tl.constexpr,
):  # fmt: skip
    """The bits of the edge, the last id at it that is needed, and of each segment the mass that
    is kept of the bin that was found."""
    target = _target(whole, floats, masses, row, COUNTS, NUM, SEGMENTS)
    low = tl.load(found + row * _FOUND).to(tl.int32)
    high = tl.load(found + row * _FOUND + _HIGH).to(tl.int32)
    above = tl.load(found + row * _FOUND + _ABOVE).to(tl.float64)
    if not COUNTS:
        above /= _ONE
    counts = of_segments(num_between, row, 0, NUM, SEGMENTS)
    num = tl.sum(counts, axis=0)
    index = tl.arange(0, SEGMENTS)
    if num <= MOST_LISTED:
        place = tl.arange(0, MOST_LISTED)
        entry = listed + (row * MOST_LISTED + place) * 2
        bits = tl.load(entry, mask=place < num, other=0)
        column = tl.load(entry + 1, mask=place < num, other=0)
        weight = bits.to(tl.float32, bitcast=True)
        # In float64, where the sums of so few and similar numbers are exact, and so have no order.
        value = tl.where(place < num, 1.0 if COUNTS else weight, 0.0).to(tl.float64)
        is_before = bits[:, None] > bits[None, :]
        is_before |= (bits[:, None] == bits[None, :]) & (column[:, None] < column[None, :])
        before = above + tl.sum(tl.where(is_before, value[:, None], 0.0), axis=0)
        is_needed = (place < num) & (before < target)
        edge = tl.min(tl.where(is_needed, bits, high), axis=0)
        last = tl.max(tl.where(is_needed & (bits == edge), column, -1), axis=0)
        is_in = is_needed[None, :] & ((column // SEGMENT)[None, :] == index[:, None])
        kept = tl.sum(tl.where(is_in, weight.to(tl.float64)[None, :], 0.0), axis=1)
        kept = kept.to(tl.float32)
    else:
        edge, needed = _settle(
            weights, row, low, high, above.to(tl.float32), counts > 0, target,
            COUNTS, VOCAB, NUM, SEGMENT, SEGMENTS,
        )  # fmt: skip
        kept = tl.zeros((SEGMENTS,), dtype=tl.float32)
        last = tl.full((), -1, tl.int32)
        segment = _next(-1, counts > 0, NUM, SEGMENTS)
        while segment < NUM:
            weight = load_segment(weights, row, segment, -1.0, VOCAB, SEGMENT)
            bits = bits_of(weight)
            column = segment * SEGMENT + tl.arange(0, SEGMENT)
            is_tie = bits == edge
            is_needed = is_tie & (tl.cumsum(is_tie.to(tl.int32), axis=0) <= needed)
            last = tl.maximum(last, tl.max(tl.where(is_needed, column, -1), axis=0))
            needed -= tl.sum(is_tie.to(tl.int32), axis=0)
            is_needed |= (bits > edge) & (bits < high)
            mass = tl.sum(tl.where(is_needed, weight, 0.0), axis=0)
            kept = tl.where(index == segment, mass, kept)
            segment = _next(segment, counts > 0, NUM, SEGMENTS)
    return edge, last, kept


@triton.jit
def _next(segment, has_any, NUM: tl.constexpr, SEGMENTS: tl.constexpr):
    """The first segment after `segment` that has any; `NUM` if there is none."""
    index = tl.arange(0, SEGMENTS)
    return tl.min(tl.where(has_any & (index > segment), index, NUM), axis=0)


@triton.jit
def _settle(
    weights, row, low, high, above, has_any, target,
    COUNTS: tl.constexpr, VOCAB: tl.constexpr, NUM: tl.constexpr,
    SEGMENT: tl.constexpr, SEGMENTS: tl.constexpr,
):  # fmt: skip
    """The bits of the edge, and how many ids at it are needed, the first ones.

    From the lower bound on the target is reached, from the upper one on it is not; each round
    looks at levels between them. above: what lies above the upper bound.
    """
    level = tl.arange(0, _LEVELS)
    while high - low > 1:
        at = low + level * ((high - low + _LEVELS - 1) // _LEVELS)
        totals = tl.zeros((_LEVELS,), dtype=tl.float32) + above
        least, most = high, low
        segment = _next(-1, has_any, NUM, SEGMENTS)
        while segment < NUM:
            weight = load_segment(weights, row, segment, -1.0, VOCAB, SEGMENT)
            bits = bits_of(weight)
            is_between = (bits >= low) & (bits < high)
            least = tl.minimum(least, tl.min(tl.where(is_between, bits, high), axis=0))
            most = tl.maximum(most, tl.max(tl.where(is_between, bits, low), axis=0))
            added = tl.where(is_between, 1.0 if COUNTS else weight, 0.0)
            is_above = bits[None, :] >= at[:, None]
            totals += tl.sum(tl.where(is_above, added[None, :], 0.0), axis=1)
            segment = _next(segment, has_any, NUM, SEGMENTS)
        if least >= most:
            # All that lie between the bounds weigh the same.
            low = most
            high = most + 1
        else:
            # Levels at or beyond the upper bound are no news: they do not reach the target.
            is_reached = (level > 0) & (totals >= target) & (at < high)
            number = tl.sum(is_reached.to(tl.int32), axis=0)
            low = tl.sum(tl.where(level == number, at, 0), axis=0)
            high = tl.min(tl.where((level == number + 1) & (at < high), at, high), axis=0)
            above = tl.maximum(above, tl.sum(tl.where(level == number + 1, totals, 0.0), axis=0))
    needed = target - above
    if not COUNTS:
        needed = tl.ceil(needed / tl.maximum(low.to(tl.float32, bitcast=True), 1e-38))
    # So many that the number is one for certain, and no more than there are.
    return low, tl.minimum(tl.maximum(needed, 1.0), VOCAB).to(tl.int32)
