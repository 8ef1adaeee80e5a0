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

from groundup.nn.kernels.cuda_decode.edge_search import (
    COUNT,
    KEY,
    LEVELS,
    NUM_FLOATS,
    NUM_ROUNDS,
    NUM_WHOLE,
    POSITION,
    count_ties,
    cut,
    load_segment,
    narrow,
    of_segments,
)
from groundup.nn.kernels.cuda_decode.launch import begin, options, wait

_SEGMENT = 2048
_WARPS = 4
# Where a row of the state begins, and its columns, for kernels.
_WHOLE, _FLOATS = tl.constexpr(NUM_WHOLE), tl.constexpr(NUM_FLOATS)
_POSITION, _COUNT, _KEY = tl.constexpr(POSITION), tl.constexpr(COUNT), tl.constexpr(KEY)


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
    whole, floats: the state of each row, in the columns of `edge_search`; top_k 0 and top_p 1 are
        none.
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
        for number in range(NUM_ROUNDS):
            new, old = number % 2, 1 - number % 2
            narrow[grid](
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
        last = (NUM_ROUNDS - 1) % 2
        found = (board.sums[last], board.bounds[last], board.reached[last])
        count_ties[grid](board.weights, *settings, *found, board.ties, COUNTS=counts, **sizes)
        cut[grid](board.weights, *settings, *found, board.ties, COUNTS=counts, **sizes)
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
    value = load_segment(logits, row, segment, float("-inf"), VOCAB, SEGMENT)
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
    top = tl.max(of_segments(tops, row, float("-inf"), NUM, SEGMENTS), axis=0)
    temperature = tl.load(floats + row * _FLOATS)
    value = load_segment(logits, row, segment, float("-inf"), VOCAB, SEGMENT)
    if temperature == 0:
        weight = (value == top).to(tl.float32)
    else:
        weight = tl.exp((value - top) / temperature)
    column = segment * SEGMENT + tl.arange(0, SEGMENT)
    tl.store(weights + row.to(tl.int64) * VOCAB + column, weight, mask=column < VOCAB)
    tl.store(masses + row * NUM + segment, tl.sum(weight, axis=0))


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
    top = tl.max(of_segments(tops, row, float("-inf"), NUM, SEGMENTS), axis=0)
    whole += row * _WHOLE
    temperature = tl.load(floats + row * _FLOATS)
    mass = of_segments(masses, row, 0.0, NUM, SEGMENTS)
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
    weight = load_segment(weights, row, segment, 0.0, VOCAB, SEGMENT)
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
