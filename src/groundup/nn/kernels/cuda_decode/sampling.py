"""Sampling of the next id on CUDA: temperature, top-k, top-p and min-p without a sort.

What a set of likeliest ids must reach, a count or a mass, only falls as the least weight in it
rises; so that edge is searched for, an eighth of the remaining floats at a time. A row is cut into
segments of one size, a program each; a launch ends with one sum a segment, and the next begins by
adding those up, in an order that does not depend on the other rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from groundup.nn.kernels.cuda_decode.launch import begin, options, wait

_SEGMENT = 2048
_WARPS = 4
# A launch looks at so many levels, and so the bits of a weight, of which there are 30, take so
# many launches.
LEVELS = tl.constexpr(8)
_ROUNDS = 10
# Just above the bits of 1.0, the greatest weight.
TOP_BITS = tl.constexpr(0x3F800001)
# Columns of a row's state: whole numbers and floats.
ID, POSITION, COUNT, KEY, TOP_K, NUM_WHOLE = range(6)
TEMPERATURE, TOP_P, LOG_MIN_P, NUM_FLOATS = range(4)
# The same for kernels: where a row begins, and its columns.
_WHOLE, _FLOATS = tl.constexpr(NUM_WHOLE), tl.constexpr(NUM_FLOATS)
_POSITION, _COUNT, _KEY = tl.constexpr(POSITION), tl.constexpr(COUNT), tl.constexpr(KEY)
_TOP_K, _TOP_P = tl.constexpr(TOP_K), tl.constexpr(TOP_P)
_LOG_MIN_P = tl.constexpr(LOG_MIN_P)


class Rules(NamedTuple):
    """Which rules any row has; the others need no launches."""

    top_k: bool = True
    top_p: bool = True
    """Or min-p."""


class Board(NamedTuple):
    """What the launches of a step leave each other."""

    weights: Tensor
    """Of each id, 1 for the likeliest; 0 once it is out."""
    tops: Tensor
    """Of each segment the highest logit; +inf if one is no number."""
    masses: Tensor
    """The weights of each segment, added up."""
    ties: Tensor
    """How many ids of each segment lie at the edge."""
    sums: Tensor
    """Of each segment, what lies between each level and the upper bound; twice, for the round
    before and its own."""
    bounds: Tensor
    """Between which bits the edge lies, for the rounds likewise."""
    reached: Tensor
    """What lies above the upper bound, and what is to be reached; likewise."""

    @classmethod
    def make(cls, num_rows: int, vocab_size: int, device: torch.device) -> Board:
        num = triton.cdiv(vocab_size, _SEGMENT)
        numbers = torch.empty(num_rows, vocab_size, device=device)
        return cls(
            numbers,
            numbers.new_empty(num_rows, num),
            numbers.new_empty(num_rows, num),
            numbers.new_empty(num_rows, num, dtype=torch.int32),
            numbers.new_empty(2, num_rows, num, LEVELS.value),
            numbers.new_empty(2, num_rows, 2, dtype=torch.int32),
            numbers.new_empty(2, num_rows, 2),
        )


def sample(
    logits: Tensor,
    board: Board,
    whole: Tensor,
    floats: Tensor,
    chosen: Tensor,
    last_position: int,
    no_id: int,
    rules: Rules = Rules(),  # noqa: B008 - a tuple of two flags
) -> None:
    """Sample an id for each row of `logits` by its state, and make the state the next token's.

    board: made for such logits.
    whole, floats: the state of each row, in the columns named above; top_k 0 and top_p 1 are none.
    chosen: the ids, `no_id` where logits are not finite.
    last_position: where positions end: what comes after is nobody's text, but must lie in tables.
    rules: which of them there are launches for.
    """
    num_rows, vocab_size = logits.shape
    num = board.tops.shape[1]
    sizes = {
        "VOCAB": vocab_size,
        "NUM": num,
        "SEGMENT": _SEGMENT,
        "SEGMENTS": triton.next_power_of_2(num),
        **options(num_warps=_WARPS),
    }
    grid = (num, num_rows)
    _segment_tops[grid](logits, board.tops, **sizes)
    _weigh[grid](logits, board.weights, board.tops, board.masses, floats, **sizes)
    for counts in (True, False):
        if not (rules.top_k if counts else rules.top_p):
            continue
        settings = (board.masses, whole, floats)
        for number in range(_ROUNDS):
            new, old = number % 2, 1 - number % 2
            _narrow[grid](
                board.weights,
                *settings,
                board.sums[old],
                board.bounds[old],
                board.reached[old],
                board.sums[new],
                board.bounds[new],
                board.reached[new],
                COUNTS=counts,
                FIRST=number == 0,
                **sizes,
            )
        last = (_ROUNDS - 1) % 2
        found = (board.sums[last], board.bounds[last], board.reached[last])
        _count_ties[grid](board.weights, *settings, *found, board.ties, COUNTS=counts, **sizes)
        _cut[grid](board.weights, *settings, *found, board.ties, COUNTS=counts, **sizes)
    _pick[(num_rows,)](
        board.weights,
        board.tops,
        board.masses,
        whole,
        floats,
        chosen,
        last_position,
        NO_ID=no_id,
        **sizes,
    )


@triton.jit
def _mix(x):
    """The finaliser of `data.counter_random`."""
    x = (x ^ (x >> 30)) * tl.full((), 0xBF58476D1CE4E5B9, tl.uint64)
    x = (x ^ (x >> 27)) * tl.full((), 0x94D049BB133111EB, tl.uint64)
    return x ^ (x >> 31)


@triton.jit
def _load(numbers, row, segment, other, VOCAB: tl.constexpr, SEGMENT: tl.constexpr):
    """A segment of a row of logits or weights."""
    column = segment * SEGMENT + tl.arange(0, SEGMENT)
    return tl.load(numbers + row.to(tl.int64) * VOCAB + column, mask=column < VOCAB, other=other)


@triton.jit
def _of_segments(numbers, row, other, NUM: tl.constexpr, SEGMENTS: tl.constexpr):
    """What a row's segments left, a number each."""
    index = tl.arange(0, SEGMENTS)
    return tl.load(numbers + row * NUM + index, mask=index < NUM, other=other)


@triton.jit
def _bits(weight):
    """Integers in the order of weights, which are never negative."""
    return weight.to(tl.int32, bitcast=True)


@triton.jit
def _segment_tops(
    logits,
    tops,
    VOCAB: tl.constexpr,
    NUM: tl.constexpr,
    SEGMENT: tl.constexpr,
    SEGMENTS: tl.constexpr,
    EARLY: tl.constexpr,
):
    wait(EARLY)
    begin(EARLY)
    segment, row = tl.program_id(0), tl.program_id(1)
    value = _load(logits, row, segment, float("-inf"), VOCAB, SEGMENT)
    is_bad = tl.max((value != value).to(tl.int32), axis=0) > 0
    top = tl.max(value, axis=0)
    tl.store(tops + row * NUM + segment, tl.where(is_bad, float("inf"), top))


@triton.jit
def _weigh(
    logits,
    weights,
    tops,
    masses,
    floats,
    VOCAB: tl.constexpr,
    NUM: tl.constexpr,
    SEGMENT: tl.constexpr,
    SEGMENTS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Probabilities but for a factor; without a temperature all but the best are out."""
    wait(EARLY)
    begin(EARLY)
    segment, row = tl.program_id(0), tl.program_id(1)
    top = tl.max(_of_segments(tops, row, float("-inf"), NUM, SEGMENTS), axis=0)
    temperature = tl.load(floats + row * _FLOATS)
    value = _load(logits, row, segment, float("-inf"), VOCAB, SEGMENT)
    if temperature == 0:
        weight = (value == top).to(tl.float32)
    else:
        weight = tl.exp((value - top) / temperature)
    column = segment * SEGMENT + tl.arange(0, SEGMENT)
    tl.store(weights + row.to(tl.int64) * VOCAB + column, weight, mask=column < VOCAB)
    tl.store(masses + row * NUM + segment, tl.sum(weight, axis=0))


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
def _narrow(
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
            high = tl.full((), TOP_BITS, tl.int32)
            above = tl.full((), 0.0, tl.float32)
            has_any = tl.full((), True, tl.int1)
            if COUNTS:
                target = tl.load(whole + row * _WHOLE + _TOP_K).to(tl.float32)
            else:
                mass = tl.sum(_of_segments(masses, row, 0.0, NUM, SEGMENTS), axis=0)
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
                weight = _load(weights, row, segment, -1.0, VOCAB, SEGMENT)
                bits = _bits(weight)
                added = tl.where(bits < high, 1.0 if COUNTS else weight, 0.0)
                is_above = bits[None, :] >= (low + level * step)[:, None]
                total = tl.sum(tl.where(is_above, added[None, :], 0.0), axis=1)
            tl.store(sums + (row * NUM + segment) * LEVELS + level, total)


@triton.jit
def _count_ties(
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
        bits = _bits(_load(weights, row, segment, -1.0, VOCAB, SEGMENT))
        tl.store(ties + row * NUM + segment, tl.sum((bits == edge).to(tl.int32), axis=0))


@triton.jit
def _cut(
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
    weight = _load(weights, row, segment, -1.0, VOCAB, SEGMENT)
    bits = _bits(weight)
    stays = bits >= 0
    if _is_active(whole, floats, row, COUNTS, VOCAB):
        edge, _, above, target, _ = _found(sums, bounds, reached, row, segment, NUM, SEGMENTS)
        needed = target - above
        if not COUNTS:
            needed = tl.ceil(needed / tl.maximum(edge.to(tl.float32, bitcast=True), 1e-38))
        # So many that the number is one for certain, and no more than there are.
        needed = tl.minimum(tl.maximum(needed, 1.0), VOCAB).to(tl.int32)
        counts = _of_segments(ties, row, 0, NUM, SEGMENTS)
        before = tl.sum(tl.where(tl.arange(0, SEGMENTS) < segment, counts, 0), axis=0)
        is_tie = bits == edge
        rank = before + tl.cumsum(is_tie.to(tl.int32), axis=0)
        stays = (bits > edge) | (is_tie & (rank <= needed))
    if not COUNTS:
        # Of all that are as likely as min-p asks, and not one less, so that no tie is cut.
        stays &= bits >= _bits(tl.exp(tl.load(floats + row * _FLOATS + _LOG_MIN_P)))
    kept = tl.where(stays, weight, 0.0)
    column = segment * SEGMENT + tl.arange(0, SEGMENT)
    tl.store(weights + row.to(tl.int64) * VOCAB + column, kept, mask=column < VOCAB)
    tl.store(masses + row * NUM + segment, tl.sum(kept, axis=0))


@triton.jit
def _pick(
    weights,
    tops,
    masses,
    whole,
    floats,
    chosen,
    last_position,
    NO_ID: tl.constexpr,
    VOCAB: tl.constexpr,
    NUM: tl.constexpr,
    SEGMENT: tl.constexpr,
    SEGMENTS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The id at which a random part of the whole mass is reached; first its segment."""
    wait(EARLY)
    begin(EARLY)
    row = tl.program_id(0)
    top = tl.max(_of_segments(tops, row, float("-inf"), NUM, SEGMENTS), axis=0)
    whole += row * _WHOLE
    temperature = tl.load(floats + row * _FLOATS)
    mass = _of_segments(masses, row, 0.0, NUM, SEGMENTS)
    key = tl.load(whole + _KEY).to(tl.uint64, bitcast=True)
    bits = _mix(_mix(tl.load(whole + _COUNT).to(tl.uint64) + key) ^ key)
    number = (bits >> 32).to(tl.float64) * 2.3283064365386963e-10
    mark = (number * tl.sum(mass, axis=0).to(tl.float64)).to(tl.float32)
    # Without a temperature the best with the lowest id.
    mark = tl.where(temperature == 0, 0.0, mark)
    before = tl.cumsum(mass, axis=0) - mass
    # Of the segments that hold anything, the last one up to and with that of the mark.
    index = tl.arange(0, SEGMENTS)
    segment = tl.max(tl.where((mass > 0) & (before <= mark), index, 0), axis=0)
    start = tl.sum(tl.where(index == segment, before, 0.0), axis=0)
    weight = _load(weights, row, segment, 0.0, VOCAB, SEGMENT)
    column = segment * SEGMENT + tl.arange(0, SEGMENT)
    is_hit = (weight > 0) & (start + tl.cumsum(weight, axis=0) > mark)
    first_hit = tl.min(tl.where(is_hit, column, 0x7FFFFFFF), axis=0)
    # Sums in another order may differ in the last digit, and leave the mark beyond the end.
    last_kept = tl.max(tl.where(weight > 0, column, 0), axis=0)
    found = tl.where(first_hit == 0x7FFFFFFF, last_kept, first_hit)
    is_sound = (top > float("-inf")) & (top < float("inf"))
    found = tl.where(is_sound, found, NO_ID)
    tl.store(chosen + row, found.to(tl.int64))
    tl.store(whole, tl.maximum(found, 0).to(tl.int64))
    tl.store(whole + _POSITION, tl.minimum(tl.load(whole + _POSITION) + 1, last_position))
    tl.store(whole + _COUNT, tl.load(whole + _COUNT) + 1)
