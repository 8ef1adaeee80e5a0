"""Sampling of the next id on CUDA: temperature, top-k, top-p and min-p without a sort.

What a set of likeliest ids must reach, a count or a mass, only falls as the least weight in it
rises; so that edge is searched for (`edge_search`). A row is cut into segments of one size, a
program each, and sums of segments are added up in an order that does not depend on the other rows.
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
    LOG_MIN_P,
    MOST_LISTED,
    NUM_BINS,
    NUM_FLOATS,
    NUM_FOUND,
    NUM_WHOLE,
    PENALTY,
    POSITION,
    TOP_P,
    bits_of,
    edge_of,
    fill,
    find,
    is_active,
    is_kept,
    load_segment,
    of_segments,
    penalized,
    split,
)
from groundup.nn.kernels.cuda_decode.launch import begin, options, wait

_SEGMENT = 1024
_WARPS = 4
# Where a row of the state begins, and its columns, for kernels.
_WHOLE, _FLOATS = tl.constexpr(NUM_WHOLE), tl.constexpr(NUM_FLOATS)
_POSITION, _COUNT, _KEY = tl.constexpr(POSITION), tl.constexpr(COUNT), tl.constexpr(KEY)
_LOG_MIN_P, _TOP_P = tl.constexpr(LOG_MIN_P), tl.constexpr(TOP_P)
_PENALTY = tl.constexpr(PENALTY)


class Rules(NamedTuple):
    """Which rules any row has; the others need no launches."""

    top_k: bool = True
    top_p: bool = True
    penalty: bool = False


class Board(NamedTuple):
    """What the launches of a step leave each other."""

    weights: Tensor
    """Of each id, 1 for the likeliest; and the same after top-k, 0 for what is out."""
    masses: Tensor
    """The weights of each segment, added up."""
    likely: Tensor
    """The same without those below min-p."""
    bins: Tensor
    """The weights, or their number, by size; empty between searches."""
    found: Tensor
    """The bin with the edge, see `edge_search`."""
    above: Tensor
    """The mass of each segment above that bin."""
    num_between: Tensor
    """How many ids of each segment are in that bin."""
    num_listed: Tensor
    """All of them, for top-p and for top-k."""
    listed: Tensor
    """The bits of their weights, and their ids; likewise."""

    @classmethod
    def make(cls, num_rows: int, vocab_size: int, device: torch.device) -> Board:
        num = triton.cdiv(vocab_size, _SEGMENT)
        numbers = torch.empty(2, num_rows, vocab_size, device=device)
        whole = numbers.new_empty(0, dtype=torch.int32)
        return cls(
            numbers,
            numbers.new_empty(num_rows, num),
            numbers.new_empty(num_rows, num),
            numbers.new_zeros(num_rows, NUM_BINS.value, dtype=torch.int64),
            numbers.new_empty(num_rows, NUM_FOUND, dtype=torch.int64),
            numbers.new_empty(num_rows, num),
            whole.new_empty(num_rows, num),
            whole.new_empty(2, num_rows),
            whole.new_empty(2, num_rows, MOST_LISTED.value, 2),
        )


def sample(
    logits: Tensor,
    tops: Tensor,
    board: Board,
    whole: Tensor,
    floats: Tensor,
    seen: Tensor,
    chosen: Tensor,
    last_position: int,
    no_id: int,
    rules: Rules = Rules(),  # noqa: B008 - a tuple of two flags
) -> None:
    """Sample an id for each row of `logits` by its state, and make the state the next token's.

    tops: the highest logit of each part of a row, the parts of any size; +inf if one is no number.
    board: made for such logits.
    whole, floats: the state of each row, in the columns of `edge_search`; top_k 0 and top_p 1 are
        none.
    seen: which ids the text of each row holds, for rows with a repetition penalty.
    chosen: the ids, `no_id` where logits are not finite.
    last_position: where positions end: what comes after is nobody's text, but must lie in tables.
    rules: which of them there are launches for.
    """
    num_rows, vocab_size = logits.shape
    num_tops, num = tops.shape[1], board.masses.shape[1]
    sizes = {
        "VOCAB": vocab_size,
        "NUM": num,
        "SEGMENT": _SEGMENT,
        "SEGMENTS": triton.next_power_of_2(num),
        **options(num_warps=_WARPS),
    }
    tops_sizes = {"NUM_TOPS": num_tops, "TOPS": triton.next_power_of_2(num_tops)}
    grid = (num, num_rows)
    weights, weights_after = board.weights
    sums = (board.masses, board.likely)
    state = (whole, floats)
    has_rule = {"PENALTY": rules.penalty}
    _weigh[grid](
        logits, tops, weights, *sums, board.bins, *state, seen, *board.num_listed,
        COUNTS=rules.top_k, SEARCH=rules.top_k or rules.top_p, **has_rule, **tops_sizes, **sizes,
    )  # fmt: skip
    for counts in (True, False):
        if not (rules.top_k if counts else rules.top_p):
            continue
        listed = (board.num_listed[int(counts)], board.listed[int(counts)])
        find[(num_rows,)](
            board.masses, *state, board.bins, board.found,
            COUNTS=counts, **(sizes | {"num_warps": 2 * _WARPS}),
        )  # fmt: skip
        split[grid](
            weights, *state, board.bins, board.found, board.above, board.num_between, *listed,
            COUNTS=counts, **sizes,
        )  # fmt: skip
        if counts:
            _cut[grid](
                weights, weights_after, *sums, board.bins, *state,
                board.found, board.num_between, listed[1],
                SEARCH=rules.top_p, **sizes,
            )  # fmt: skip
            weights = weights_after
    _pick[(num_rows,)](
        weights, tops, *sums, *state, board.found, board.above, board.num_between,
        board.listed[0], seen, chosen, last_position,
        NO_ID=no_id, TOP_P=rules.top_p, **has_rule, **tops_sizes, **sizes,
    )  # fmt: skip


@triton.jit
def _mix(x):
    """The finaliser of `data.counter_random`."""
    x = (x ^ (x >> 30)) * tl.full((), 0xBF58476D1CE4E5B9, tl.uint64)
    x = (x ^ (x >> 27)) * tl.full((), 0x94D049BB133111EB, tl.uint64)
    return x ^ (x >> 31)


@triton.jit
def _least_bits(floats, row):
    """Of all that are as likely as min-p asks."""
    return bits_of(tl.exp(tl.load(floats + row * _FLOATS + _LOG_MIN_P)))


@triton.jit
def _hand_on(
    weight, least_mass, weights, masses, likely, bins, whole, floats, row, segment,
    COUNTS: tl.constexpr, SEARCH: tl.constexpr,
    VOCAB: tl.constexpr, NUM: tl.constexpr, SEGMENT: tl.constexpr,
):  # fmt: skip
    """What the next launches need of a segment's weights; those of the row have `least_mass` or
    more."""
    column = segment * SEGMENT + tl.arange(0, SEGMENT)
    tl.store(weights + row.to(tl.int64) * VOCAB + column, weight, mask=column < VOCAB)
    tl.store(masses + row * NUM + segment, tl.sum(weight, axis=0))
    is_likely = bits_of(weight) >= _least_bits(floats, row)
    tl.store(likely + row * NUM + segment, tl.sum(tl.where(is_likely, weight, 0.0), axis=0))
    if SEARCH:  # noqa: SIM102 - one is known when it is compiled
        if is_active(whole, floats, row, COUNTS, VOCAB):
            spare = least_mass * (1.0 - tl.load(floats + row * _FLOATS + _TOP_P))
            fill(tl.where(column < VOCAB, weight, -1.0), bins, row, spare, COUNTS, VOCAB)


@triton.jit
def _weigh(
    logits,
    tops,
    weights,
    masses,
    likely,
    bins,
    whole,
    floats,
    seen,
    num_listed_of_p,
    num_listed_of_k,
    COUNTS: tl.constexpr,
    SEARCH: tl.constexpr,
    PENALTY: tl.constexpr,
    NUM_TOPS: tl.constexpr,
    TOPS: tl.constexpr,
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
    all_tops = of_segments(tops, row, float("-inf"), NUM_TOPS, TOPS)
    top = tl.max(all_tops, axis=0)
    temperature = tl.load(floats + row * _FLOATS)
    value = load_segment(logits, row, segment, float("-inf"), VOCAB, SEGMENT)
    if PENALTY:
        is_seen = load_segment(seen, row, segment, 0, VOCAB, SEGMENT) > 0
        value = penalized(value, is_seen, tl.load(floats + row * _FLOATS + _PENALTY))
    least_mass = tl.full((), 1.0, tl.float32)
    if temperature == 0:
        weight = (value == top).to(tl.float32)
    else:
        weight = tl.exp((value - top) / temperature)
        least_mass = tl.sum(tl.exp((all_tops - top) / temperature), axis=0)
    _hand_on(
        weight, least_mass, weights, masses, likely, bins, whole, floats, row, segment,
        COUNTS, SEARCH, VOCAB, NUM, SEGMENT,
    )  # fmt: skip
    if segment == 0:
        tl.store(num_listed_of_p + row, 0)
        tl.store(num_listed_of_k + row, 0)


@triton.jit
def _cut(
    weights,
    new_weights,
    masses,
    likely,
    bins,
    whole,
    floats,
    found,
    num_between,
    listed,
    SEARCH: tl.constexpr,
    VOCAB: tl.constexpr,
    NUM: tl.constexpr,
    SEGMENT: tl.constexpr,
    SEGMENTS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The weights after top-k."""
    wait(EARLY)
    begin(EARLY)
    segment, row = tl.program_id(0), tl.program_id(1)
    weight = load_segment(weights, row, segment, 0.0, VOCAB, SEGMENT)
    if is_active(whole, floats, row, True, VOCAB):
        edge, last, _ = edge_of(
            weights, masses, whole, floats, found, num_between, listed, row,
            True, VOCAB, NUM, SEGMENT, SEGMENTS,
        )  # fmt: skip
        column = segment * SEGMENT + tl.arange(0, SEGMENT)
        weight = tl.where(is_kept(bits_of(weight), column, edge, last), weight, 0.0)
    # The greatest weight is 1.
    _hand_on(
        weight, 1.0, new_weights, masses, likely, bins, whole, floats, row, segment,
        False, SEARCH, VOCAB, NUM, SEGMENT,
    )  # fmt: skip


@triton.jit
def _pick(
    weights,
    tops,
    masses,
    likely,
    whole,
    floats,
    found,
    above,
    num_between,
    listed,
    seen,
    chosen,
    last_position,
    NO_ID: tl.constexpr,
    TOP_P: tl.constexpr,
    PENALTY: tl.constexpr,
    NUM_TOPS: tl.constexpr,
    TOPS: tl.constexpr,
    VOCAB: tl.constexpr,
    NUM: tl.constexpr,
    SEGMENT: tl.constexpr,
    SEGMENTS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The id at which a random part of the mass that is kept is reached; first its segment."""
    wait(EARLY)
    begin(EARLY)
    row = tl.program_id(0)
    top = tl.max(of_segments(tops, row, float("-inf"), NUM_TOPS, TOPS), axis=0)
    index = tl.arange(0, SEGMENTS)
    # All that are as likely as min-p asks, and none less, so that no tie is cut.
    edge = _least_bits(floats, row) - 1
    last = tl.full((), -1, tl.int32)
    mass = of_segments(likely, row, 0.0, NUM, SEGMENTS)
    if TOP_P:  # noqa: SIM102 - one is known when it is compiled
        if is_active(whole, floats, row, False, VOCAB):
            edge_of_p, last_of_p, kept = edge_of(
                weights, masses, whole, floats, found, num_between, listed, row,
                False, VOCAB, NUM, SEGMENT, SEGMENTS,
            )  # fmt: skip
            if edge_of_p > edge:
                edge = edge_of_p
                last = last_of_p
                mass = of_segments(above, row, 0.0, NUM, SEGMENTS) + kept
    whole += row * _WHOLE
    temperature = tl.load(floats + row * _FLOATS)
    key = tl.load(whole + _KEY).to(tl.uint64, bitcast=True)
    bits = _mix(_mix(tl.load(whole + _COUNT).to(tl.uint64) + key) ^ key)
    number = (bits >> 32).to(tl.float64) * 2.3283064365386963e-10
    mark = (number * tl.sum(mass, axis=0).to(tl.float64)).to(tl.float32)
    # Without a temperature the best with the lowest id.
    mark = tl.where(temperature == 0, 0.0, mark)
    before = tl.cumsum(mass, axis=0) - mass
    # Of the segments that hold anything, the last one up to and with that of the mark.
    segment = tl.max(tl.where((mass > 0) & (before <= mark), index, 0), axis=0)
    start = tl.sum(tl.where(index == segment, before, 0.0), axis=0)
    weight = load_segment(weights, row, segment, 0.0, VOCAB, SEGMENT)
    column = segment * SEGMENT + tl.arange(0, SEGMENT)
    weight = tl.where(is_kept(bits_of(weight), column, edge, last), weight, 0.0)
    is_hit = (weight > 0) & (start + tl.cumsum(weight, axis=0) > mark)
    first_hit = tl.min(tl.where(is_hit, column, 0x7FFFFFFF), axis=0)
    # Sums in another order may differ in the last digit, and leave the mark beyond the end.
    last_kept = tl.max(tl.where(weight > 0, column, 0), axis=0)
    found_id = tl.where(first_hit == 0x7FFFFFFF, last_kept, first_hit)
    is_sound = (top > float("-inf")) & (top < float("inf"))
    found_id = tl.where(is_sound, found_id, NO_ID)
    tl.store(chosen + row, found_id.to(tl.int64))
    if PENALTY:
        tl.store(seen + row.to(tl.int64) * VOCAB + tl.maximum(found_id, 0), 1)
    tl.store(whole, tl.maximum(found_id, 0).to(tl.int64))
    tl.store(whole + _POSITION, tl.minimum(tl.load(whole + _POSITION) + 1, last_position))
    tl.store(whole + _COUNT, tl.load(whole + _COUNT) + 1)
