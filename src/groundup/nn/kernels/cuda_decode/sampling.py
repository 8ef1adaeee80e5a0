"""Sampling of the next id on CUDA, one program a row: temperature, top-k, top-p and min-p without
a sort.

What a set of likeliest ids must reach, a count or a mass, only falls as the least probability in it
rises; so that is searched for, a quarter of the remaining floats at a time: with eighths it took
longer.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096
# Loads under way at once.
UNROLL = tl.constexpr(4)
# Columns of a row's state: whole numbers and floats.
ID, POSITION, COUNT, KEY, TOP_K, NUM_WHOLE = range(6)
TEMPERATURE, TOP_P, LOG_MIN_P, NUM_FLOATS = range(4)


def sample(
    logits: Tensor,
    weights: Tensor,
    whole: Tensor,
    floats: Tensor,
    chosen: Tensor,
    last_position: int,
    no_id: int,
) -> None:
    """Sample an id for each row of `logits` by its state, and make the state the next token's.

    weights: of the shape of the logits, written over.
    whole, floats: the state of each row, in the columns named above; top_k 0 and top_p 1 are none.
    chosen: the ids, `no_id` where logits are not finite.
    last_position: where positions end: what comes after is nobody's text, but must lie in tables.
    """
    _sample[(len(logits),)](
        logits,
        weights,
        whole,
        floats,
        chosen,
        last_position,
        VOCAB=logits.shape[1],
        NO_ID=no_id,
        ID=ID,
        POSITION=POSITION,
        COUNT=COUNT,
        KEY=KEY,
        TOP_K=TOP_K,
        NUM_WHOLE=NUM_WHOLE,
        TEMPERATURE=TEMPERATURE,
        TOP_P=TOP_P,
        LOG_MIN_P=LOG_MIN_P,
        NUM_FLOATS=NUM_FLOATS,
        BLOCK=_BLOCK,
        num_warps=32,
    )


@triton.jit
def _mix(x):
    """The finaliser of `data.counter_random`."""
    x = (x ^ (x >> 30)) * tl.full((), 0xBF58476D1CE4E5B9, tl.uint64)
    x = (x ^ (x >> 27)) * tl.full((), 0x94D049BB133111EB, tl.uint64)
    return x ^ (x >> 31)


@triton.jit
def _load(row, start, VOCAB: tl.constexpr, other, BLOCK: tl.constexpr):
    column = start + tl.arange(0, BLOCK)
    return tl.load(row + column, mask=column < VOCAB, other=other)


@triton.jit
def _bits(weight):
    """Integers in the order of weights, which are never negative."""
    return weight.to(tl.int32, bitcast=True)


@triton.jit
def _add(a, b, c, d, e, f):
    return a + d, b + e, c + f


@triton.jit
def _edge(weights, target, lowest, counts, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """The highest weight, as bits, from which on the ids reach the target: they weigh so much, or
    are so many."""
    low = lowest
    high = tl.full((), 0x3F800001, tl.int32)
    while high - low > 1:
        quarter = tl.maximum((high - low) // 4, 1)
        # Sums run beside each other until the end, since adding them up stops all threads.
        first = tl.zeros((BLOCK,), dtype=tl.float32)
        second = tl.zeros((BLOCK,), dtype=tl.float32)
        third = tl.zeros((BLOCK,), dtype=tl.float32)
        for start in tl.range(0, VOCAB, BLOCK, loop_unroll_factor=UNROLL):
            weight = _load(weights, start, VOCAB, -1.0, BLOCK)
            bits = _bits(weight)
            added = tl.where(counts, 1.0, weight)
            first += tl.where(bits >= low + quarter, added, 0.0)
            second += tl.where(bits >= low + 2 * quarter, added, 0.0)
            third += tl.where(bits >= low + 3 * quarter, added, 0.0)
        a, b, c = tl.reduce((first, second, third), 0, _add)
        # Levels beyond the highest are empty and reach nothing.
        if c >= target:
            low = low + 3 * quarter
        elif b >= target:
            low, high = low + 2 * quarter, tl.minimum(high, low + 3 * quarter)
        elif a >= target:
            low, high = low + quarter, tl.minimum(high, low + 2 * quarter)
        else:
            high = low + quarter
    return low


@triton.jit
def _above(weights, edge, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """What the ids strictly above an edge weigh, how many they are, and how many are at it."""
    masses = tl.zeros((BLOCK,), dtype=tl.float32)
    above = tl.zeros((BLOCK,), dtype=tl.int32)
    at_edge = tl.zeros((BLOCK,), dtype=tl.int32)
    for start in tl.range(0, VOCAB, BLOCK, loop_unroll_factor=UNROLL):
        weight = _load(weights, start, VOCAB, -1.0, BLOCK)
        bits = _bits(weight)
        masses += tl.where(bits > edge, weight, 0.0)
        above += (bits > edge).to(tl.int32)
        at_edge += (bits == edge).to(tl.int32)
    return tl.reduce((masses, above, at_edge), 0, _add)


@triton.jit
def _nth_tie(weights, edge, count, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """The id of the last of `count` ids at the edge, in id order."""
    last = VOCAB
    num_before = 0
    for start in tl.range(0, VOCAB, BLOCK, loop_unroll_factor=UNROLL):
        tie = (_bits(_load(weights, start, VOCAB, -1.0, BLOCK)) == edge).to(tl.int32)
        rank = num_before + tl.cumsum(tie, axis=0)
        column = start + tl.arange(0, BLOCK)
        is_last = (tie == 1) & (rank == count)
        last = tl.minimum(last, tl.min(tl.where(is_last, column, VOCAB), axis=0))
        num_before += tl.sum(tie, axis=0)
    return last


@triton.jit
def _kept(weights, start, edge, last_tie, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """The weights of the ids that remain, 0 for others."""
    weight = _load(weights, start, VOCAB, 0.0, BLOCK)
    column = start + tl.arange(0, BLOCK)
    bits = _bits(weight)
    stays = (bits > edge) | ((bits == edge) & (column <= last_tie))
    return tl.where(stays, weight, 0.0)


@triton.jit
def _sample(
    logits,
    weights,
    whole,
    floats,
    chosen,
    last_position,
    VOCAB: tl.constexpr,
    NO_ID: tl.constexpr,
    ID: tl.constexpr,
    POSITION: tl.constexpr,
    COUNT: tl.constexpr,
    KEY: tl.constexpr,
    TOP_K: tl.constexpr,
    NUM_WHOLE: tl.constexpr,
    TEMPERATURE: tl.constexpr,
    TOP_P: tl.constexpr,
    LOG_MIN_P: tl.constexpr,
    NUM_FLOATS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    logits += row.to(tl.int64) * VOCAB
    weights += row.to(tl.int64) * VOCAB
    whole += row * NUM_WHOLE
    floats += row * NUM_FLOATS
    temperature = tl.load(floats + TEMPERATURE)

    tops = tl.full((BLOCK,), float("-inf"), tl.float32)
    bad = tl.zeros((BLOCK,), dtype=tl.int32)
    for start in tl.range(0, VOCAB, BLOCK, loop_unroll_factor=UNROLL):
        value = _load(logits, start, VOCAB, float("-inf"), BLOCK)
        bad |= (value != value).to(tl.int32)
        tops = tl.maximum(tops, value)
    top = tl.max(tops, axis=0)
    is_sound = (tl.max(bad, axis=0) == 0) & (top > float("-inf")) & (top < float("inf"))

    found = tl.full((), 0, tl.int32)
    if temperature == 0:
        columns = tl.full((BLOCK,), 0x7FFFFFFF, tl.int32)
        for start in tl.range(0, VOCAB, BLOCK, loop_unroll_factor=UNROLL):
            value = _load(logits, start, VOCAB, float("-inf"), BLOCK)
            column = start + tl.arange(0, BLOCK)
            columns = tl.minimum(columns, tl.where(value == top, column, 0x7FFFFFFF))
        found = tl.min(columns, axis=0)
    elif is_sound:
        # Probabilities but for a factor; the best weighs 1.
        masses = tl.zeros((BLOCK,), dtype=tl.float32)
        for start in tl.range(0, VOCAB, BLOCK, loop_unroll_factor=UNROLL):
            value = _load(logits, start, VOCAB, float("-inf"), BLOCK)
            weight = tl.exp((value - top) / temperature)
            masses += weight
            column = start + tl.arange(0, BLOCK)
            tl.store(weights + column, weight, mask=column < VOCAB)
        tl.debug_barrier()
        kept = tl.sum(masses, axis=0)

        edge = tl.full((), 0, tl.int32)
        last_tie = VOCAB
        top_k = tl.load(whole + TOP_K).to(tl.int32)
        if (top_k > 0) & (top_k < VOCAB):
            edge = _edge(weights, top_k.to(tl.float32), edge, True, VOCAB, BLOCK)
            mass, num_above, num_ties = _above(weights, edge, VOCAB, BLOCK)
            room = top_k - num_above
            kept = mass + room.to(tl.float32) * edge.to(tl.float32, bitcast=True)
            if room < num_ties:
                last_tie = _nth_tie(weights, edge, room, VOCAB, BLOCK)
        top_p = tl.load(floats + TOP_P)
        if top_p < 1.0:
            target = kept * top_p
            before = edge
            edge = _edge(weights, target, edge, False, VOCAB, BLOCK)
            mass, num_above, num_ties = _above(weights, edge, VOCAB, BLOCK)
            edge_weight = tl.maximum(edge.to(tl.float32, bitcast=True), 1e-38)
            room = tl.maximum(tl.ceil((target - mass) / edge_weight), 1.0).to(tl.int32)
            # With an edge of its own, the ties of the last one are all above it.
            last_tie = tl.where(edge == before, last_tie, VOCAB)
            if room < num_ties:
                nth = _nth_tie(weights, edge, room, VOCAB, BLOCK)
                last_tie = tl.minimum(last_tie, nth)
        # Of all that are as likely as this, and not one less, so that no tie is cut.
        least = tl.exp(tl.load(floats + LOG_MIN_P)).to(tl.int32, bitcast=True)
        if least > edge:
            edge = least - 1
            last_tie = VOCAB

        # What remains weighs so much, added up block by block; then the block in which a random
        # part of that is reached; then the id.
        total = tl.zeros((), dtype=tl.float32)
        for start in tl.range(0, VOCAB, BLOCK, loop_unroll_factor=UNROLL):
            weight = _kept(weights, start, edge, last_tie, VOCAB, BLOCK)
            total += tl.sum(weight, axis=0)
        key = tl.load(whole + KEY).to(tl.uint64, bitcast=True)
        bits = _mix(_mix(tl.load(whole + COUNT).to(tl.uint64) + key) ^ key)
        number = (bits >> 32).to(tl.float64) * 2.3283064365386963e-10
        mark = (number * total.to(tl.float64)).to(tl.float32)
        sums = tl.zeros((), dtype=tl.float32)
        before_block = tl.zeros((), dtype=tl.float32)
        block = tl.full((), -1, tl.int32)
        for start in tl.range(0, VOCAB, BLOCK, loop_unroll_factor=UNROLL):
            weight = _kept(weights, start, edge, last_tie, VOCAB, BLOCK)
            added = tl.sum(weight, axis=0)
            # Of the blocks that hold anything, the last one up to and with that of the mark.
            if (added > 0) & (sums <= mark):
                block = start
                before_block = sums
            sums += added
        weight = _kept(weights, block, edge, last_tie, VOCAB, BLOCK)
        column = block + tl.arange(0, BLOCK)
        is_hit = (weight > 0) & (before_block + tl.cumsum(weight, axis=0) > mark)
        first_hit = tl.min(tl.where(is_hit, column, 0x7FFFFFFF), axis=0)
        # Sums in another order may differ in the last digit, and leave the mark beyond the end.
        last_kept = tl.max(tl.where(weight > 0, column, 0), axis=0)
        found = tl.where(first_hit == 0x7FFFFFFF, last_kept, first_hit)

    found = tl.where(is_sound, found, NO_ID)
    tl.store(chosen + row, found.to(tl.int64))
    tl.store(whole + ID, tl.maximum(found, 0).to(tl.int64))
    tl.store(whole + POSITION, tl.minimum(tl.load(whole + POSITION) + 1, last_position))
    tl.store(whole + COUNT, tl.load(whole + COUNT) + 1)
