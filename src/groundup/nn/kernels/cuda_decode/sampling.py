"""Sampling of the next id on CUDA: the rules of `generation.sampling` without a sort.

Top-k and top-p keep the ids above a threshold, where their number or mass reaches a target. Weights
are compared by their bits, as integers. The launch that computes them adds them to a histogram with
narrow bins, in integers, whose sum is the same in any order. `_find` sums a row's bins until the
target is reached; `_split` lists the ids in that bin, and `_threshold` compares all pairs of them.
If more than 64 ids share the bin, and so differ by less than 0.4%, lower ids are kept first. A row
is split into segments of equal size, one program each, and sums of segments are added in an order
that does not depend on the other rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from groundup.nn.kernels.cuda_decode.launch import options, wait
from groundup.nn.kernels.cuda_decode.matmul import Buffers, embed_row, penalized

_SEGMENT = tl.constexpr(1024)
# 256 bins per factor of two, for weights from 1 down to 2^-32; the last one, for smaller weights,
# is not filled.
_BINS, _SHIFT = tl.constexpr(8192), tl.constexpr(15)
# The bits of 1.0, the largest weight, and the integer for a weight of 1.
_TOP_BITS, _ONE = tl.constexpr(0x3F800000), tl.constexpr(1 << 40)
# Bins cleared at once, and summed at once.
_CHUNK, _SPAN = tl.constexpr(1024), tl.constexpr(4096)
# Maximum number of ids listed in a bin.
_LISTED = tl.constexpr(64)
_NONE = tl.constexpr(0x7FFFFFFF)
# Warps of the kernels with one program per row, which are bound by latency.
_FIND_WARPS, _PICK_WARPS = 16, 8


class Rules(NamedTuple):
    """The rules used by any row; the others need no launches."""

    top_k: bool = True
    top_p: bool = True
    penalty: bool = False


class State(NamedTuple):
    """State of the rows before their next step: `starts` are the first positions of documents,
    `counts` the numbers of sampled ids, `keys` those of the random numbers; top_k is 0 for none,
    top_p 1."""

    ids: Tensor
    positions: Tensor
    starts: Tensor
    counts: Tensor
    keys: Tensor
    top_k: Tensor
    temperature: Tensor
    top_p: Tensor
    log_min_p: Tensor
    penalty: Tensor
    seen: Tensor
    """The ids in each row's text, (rows, vocab), for rows with a repetition penalty."""


class Workspace(NamedTuple):
    """Buffers shared by the launches of a step, with one entry per row. A search finds the bin that
    contains the threshold."""

    weights: Tensor
    """Weight of each id: 1 for the most likely, 0 if top-k removed it."""
    masses: Tensor
    """Sum of the weights of each segment; `likely` without those below min-p; `above` of those
    above the bin found."""
    likely: Tensor
    above: Tensor
    between: Tensor
    """Total count of each segment's ids in that bin."""
    bins: Tensor
    """Histogram of counts; zero between searches."""
    found: Tensor
    """Lowest bits in the bin and above it, count above it, target, number of ids in the bin;
    `listed` has their (bits, id)."""
    listed: Tensor

    @classmethod
    def make(cls, num_rows: int, vocab_size: int, device: torch.device) -> Workspace:
        num = triton.cdiv(vocab_size, _SEGMENT.value)
        masses, likely, above = torch.empty(3, num_rows, num, device=device)
        whole = torch.zeros(num_rows, _BINS.value, dtype=torch.int64, device=device)
        return cls(
            masses.new_empty(num_rows, vocab_size),
            masses,
            likely,
            above,
            whole.new_empty(num_rows, num),
            whole,
            whole.new_empty(num_rows, 5),
            whole.new_empty(num_rows, _LISTED.value, 2, dtype=torch.int32),
        )


def sample(
    stream: Buffers,
    state: State,
    work: Workspace,
    table: Tensor,
    chosen: Tensor,
    last_position: int,
    no_id: int,
    separator: int,
    rules: Rules,
) -> None:
    """Sample an id for each row from the stream's logits and its state, and advance state and
    stream to the next token.

    table: the embeddings.
    chosen: receives the ids, `no_id` where logits are not finite.
    last_position: positions are clamped to it: unused rows must stay within the tables.
    separator: the id that begins a document, or -1.
    """
    logits, tops = stream.logits, stream.tops
    num_rows, vocab_size = logits.shape
    grid = (triton.cdiv(vocab_size, _SEGMENT.value), num_rows)
    sizes = {"VOCAB": vocab_size, **options(num_warps=4)}
    known = {"PENALTY": rules.penalty, "NUM_TOPS": tops.shape[1], **sizes}
    given = (logits, tops, state, work)

    def search(counts: bool) -> None:
        _find[(num_rows,)](state, work, COUNTS=counts, **(sizes | {"num_warps": _FIND_WARPS}))
        _split[grid](state, work, COUNTS=counts, **sizes)

    searches = rules.top_k or rules.top_p
    _weigh[grid](*given, CUT=False, COUNTS=rules.top_k, SEARCHES=searches, **known)
    if rules.top_k:
        search(counts=True)
        _weigh[grid](*given, CUT=True, COUNTS=False, SEARCHES=rules.top_p, **known)
    if rules.top_p:
        search(counts=False)
    _pick[(num_rows,)](
        stream, state, work, table, chosen, last_position, NO_ID=no_id, SEPARATOR=separator,
        TOP_P=rules.top_p, WIDTH=table.shape[1], **(known | {"num_warps": _PICK_WARPS}),
    )  # fmt: skip


@triton.jit
def _bits(weight):
    """Bits of non-negative weights as integers, which have the same order."""
    return weight.to(tl.int32, bitcast=True)


@triton.jit
def _count(weight, COUNTS: tl.constexpr):
    """An id's contribution to the target: 1, or its weight as an integer."""
    return (weight > 0).to(tl.int64) if COUNTS else (weight * _ONE).to(tl.int64)


@triton.jit
def _load(numbers, row, segment, other, VOCAB: tl.constexpr):
    """Ids of a segment, and their values in a table as wide as the vocabulary."""
    column = segment * _SEGMENT + tl.arange(0, _SEGMENT)
    entry = numbers + row.to(tl.int64) * VOCAB + column
    return column, tl.load(entry, mask=column < VOCAB, other=other)


@triton.jit
def _of_segments(numbers, row, other, NUM: tl.constexpr):
    """Load one value per segment of a row."""
    index = tl.arange(0, triton.next_power_of_2(NUM))
    return tl.load(numbers + row * NUM + index, mask=index < NUM, other=other)


@triton.jit
def _is_active(state, row, COUNTS: tl.constexpr):
    """Whether the row uses the rule: top-k with COUNTS, else top-p."""
    return (tl.load(state.top_k + row) > 0) if COUNTS else (tl.load(state.top_p + row) < 1.0)


@triton.jit
def _weigh(
    logits, tops, state, work, PENALTY: tl.constexpr, CUT: tl.constexpr, COUNTS: tl.constexpr,
    SEARCHES: tl.constexpr, NUM_TOPS: tl.constexpr, VOCAB: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Unnormalized probabilities and their sums; zero at temperature 0 for all but the best, and
    after top-k (`CUT`) for removed ids. Fills the histogram of the next search."""
    wait(EARLY)
    segment, row = tl.program_id(0), tl.program_id(1)
    num: tl.constexpr = triton.cdiv(VOCAB, _SEGMENT)
    # Issue all loads first, here and below, so that their latencies overlap.
    column, value = _load(logits, row, segment, float("-inf"), VOCAB)
    all_tops = _of_segments(tops, row, float("-inf"), NUM_TOPS)
    temperature = tl.load(state.temperature + row)
    log_min_p = tl.load(state.log_min_p + row)
    left_out = 1.0 - tl.load(state.top_p + row)
    searches = _is_active(state, row, COUNTS) if SEARCHES else False
    top = tl.max(all_tops, axis=0)
    if PENALTY:
        _of_seen, is_seen = _load(state.seen, row, segment, 0, VOCAB)
        value = penalized(value, is_seen > 0, tl.load(state.penalty + row))
    # A lower bound of the row's mass.
    least_mass = tl.full((), 1.0, tl.float32)
    if temperature == 0:
        weight = (value == top).to(tl.float32)
    else:
        weight = tl.exp((value - top) / temperature)
        if not CUT:
            least_mass = tl.sum(tl.exp((all_tops - top) / temperature), axis=0)
    if CUT:  # noqa: SIM102 - one is known when it is compiled
        if _is_active(state, row, True):
            low, high, last, _kept = _threshold(work, row, True, VOCAB)
            is_kept = (_bits(weight) >= high) | ((_bits(weight) >= low) & (column <= last))
            weight = tl.where(is_kept, weight, 0.0)
    tl.store(work.weights + row.to(tl.int64) * VOCAB + column, weight, mask=column < VOCAB)
    tl.store(work.masses + row * num + segment, tl.sum(weight, axis=0))
    bits = _bits(weight)
    least = _bits(tl.exp(log_min_p))
    likely = tl.where(bits >= least, weight, 0.0)
    tl.store(work.likely + row * num + segment, tl.sum(likely, axis=0))
    if SEARCHES:  # noqa: SIM102
        if searches:
            number = (_TOP_BITS - bits) >> _SHIFT
            matters = (bits > 0) & (bits <= _TOP_BITS) & (number < _BINS - 1)
            if not COUNTS:
                # Ids with so little weight sum to less than top-p removes, with a margin of a tenth
                # for rounding.
                spare = least_mass * left_out
                matters &= weight > 0.9 * spare / VOCAB
            entry = work.bins + row * _BINS + number
            tl.atomic_add(entry, _count(weight, COUNTS), mask=matters, sem="relaxed")


@triton.jit
def _find(state, work, COUNTS: tl.constexpr, VOCAB: tl.constexpr, EARLY: tl.constexpr):
    """Find the first bin, from the largest weights down, that reaches the target. Includes rows
    without the rule, because a branch would delay the loads."""
    wait(EARLY)
    row = tl.program_id(0)
    # First sum groups of eight bins, then search the group that reaches the target.
    index, each = tl.arange(0, _SPAN // 8) * 8, tl.arange(0, 8)
    bins = work.bins + row * _BINS
    entries = bins + index[:, None] + each[None, :]
    parts = tl.load(entries)
    masses = _of_segments(work.masses, row, 0.0, triton.cdiv(VOCAB, _SEGMENT))
    top_k, top_p = tl.load(state.top_k + row), tl.load(state.top_p + row)
    target = top_k if COUNTS else _count(tl.sum(masses, axis=0) * top_p, False)
    # Even a tiny top-p keeps the most likely id.
    target = tl.maximum(target, 1)
    above = tl.full((), 0, tl.int64)
    number = tl.full((), _NONE, tl.int32)
    for start in range(0, _BINS, _SPAN):
        if number == _NONE:
            if start > 0:
                parts = tl.load(entries + start)
            sums = tl.sum(parts, axis=1)
            is_reached = above + tl.cumsum(sums, axis=0) >= target
            number = tl.min(tl.where(is_reached, start + index, _NONE), axis=0)
            above += tl.sum(tl.where(is_reached, 0, sums), axis=0)
    # Past the end if all ids together do not reach the target.
    number = tl.minimum(number, _BINS - 1)
    ones = tl.load(bins + number + each, mask=number + each < _BINS, other=0)
    before = above + tl.cumsum(ones, axis=0) - ones
    # The first bin of the group that reaches the target, or the last of the group if none does.
    is_last = (before < target) & ((before + ones >= target) | (each == 7))
    above = tl.sum(tl.where(is_last, before, 0), axis=0)
    number += tl.sum(tl.where(is_last, each, 0), axis=0)
    number = tl.minimum(number, _BINS - 1)
    low = tl.where(number == _BINS - 1, 1, _TOP_BITS + 1 - ((number + 1) << _SHIFT))
    found = work.found + row * 5
    tl.store(found, low.to(tl.int64))
    tl.store(found + 1, (_TOP_BITS + 1 - (number << _SHIFT)).to(tl.int64))
    tl.store(found + 2, above)
    tl.store(found + 3, target)
    tl.store(found + 4, 0)


@triton.jit
def _split(state, work, COUNTS: tl.constexpr, VOCAB: tl.constexpr, EARLY: tl.constexpr):
    """List a segment's ids in the bin found, in any order, and sum the weights above the bin."""
    wait(EARLY)
    segment, row = tl.program_id(0), tl.program_id(1)
    num: tl.constexpr = triton.cdiv(VOCAB, _SEGMENT)
    found = work.found + row * 5
    low, high = tl.load(found).to(tl.int32), tl.load(found + 1).to(tl.int32)
    column, weight = _load(work.weights, row, segment, 0.0, VOCAB)
    bits = _bits(weight)
    tl.store(work.above + row * num + segment, tl.sum(tl.where(bits >= high, weight, 0.0)))
    is_between = (bits >= low) & (bits < high)
    num_between = tl.sum(is_between.to(tl.int32), axis=0)
    between = tl.full((), 0, tl.int64)
    if num_between > 0:
        between = tl.sum(tl.where(is_between, _count(weight, COUNTS), 0), axis=0)
        first = tl.atomic_add(found + 4, num_between.to(tl.int64), sem="relaxed")
        index = first + tl.cumsum(is_between.to(tl.int32), axis=0) - 1
        fits = is_between & (index < _LISTED)
        entry = work.listed + (row * _LISTED + index) * 2
        tl.store(entry, bits, mask=fits)
        tl.store(entry + 1, column, mask=fits)
    tl.store(work.between + row * num + segment, between)
    # Clear the bins for the next search.
    for start in range(segment * _CHUNK, _BINS, num * _CHUNK):
        number = start + tl.arange(0, _CHUNK)
        tl.store(work.bins + row * _BINS + number, tl.zeros((_CHUNK,), dtype=tl.int64))


@triton.jit
def _threshold(work, row, COUNTS: tl.constexpr, VOCAB: tl.constexpr):
    """Return the lowest bits at and above the threshold, the last id kept at it, and the count kept
    of each segment in the bin."""
    num: tl.constexpr = triton.cdiv(VOCAB, _SEGMENT)
    found = work.found + row * 5
    low, high = tl.load(found).to(tl.int32), tl.load(found + 1).to(tl.int32)
    above, target, num_between = tl.load(found + 2), tl.load(found + 3), tl.load(found + 4)
    number = tl.arange(0, _LISTED)
    entry = work.listed + (row * _LISTED + number) * 2
    bits, column = tl.load(entry), tl.load(entry + 1)
    between = _of_segments(work.between, row, 0, num)
    index = tl.arange(0, triton.next_power_of_2(num))
    if num_between <= _LISTED:
        # Entries beyond `num_between` are stale.
        bits = tl.where(number < num_between, bits, 0)
        count = _count(bits.to(tl.float32, bitcast=True), COUNTS)
        is_before = bits[:, None] > bits[None, :]
        is_before |= (bits[:, None] == bits[None, :]) & (column[:, None] < column[None, :])
        before = above + tl.sum(tl.where(is_before, count[:, None], 0), axis=0)
        is_needed = (number < num_between) & (before < target)
        low = tl.min(tl.where(is_needed, bits, high), axis=0)
        high = low + 1
        last = tl.max(tl.where(is_needed & (bits == low), column, -1), axis=0)
        is_in = is_needed[None, :] & ((column // _SEGMENT)[None, :] == index[:, None])
        kept = tl.sum(tl.where(is_in, count[None, :], 0), axis=1)
    else:
        so_far = above + tl.cumsum(between, axis=0) - between
        # The last segment with ids to keep; of its ids, the first ones are kept.
        segment = tl.max(tl.where((between > 0) & (so_far < target), index, 0), axis=0)
        start = tl.sum(tl.where(index == segment, so_far, 0), axis=0)
        id, weight = _load(work.weights, row, segment, 0.0, VOCAB)
        is_between = (_bits(weight) >= low) & (_bits(weight) < high)
        counts = tl.where(is_between, _count(weight, COUNTS), 0)
        is_among = is_between & (start + tl.cumsum(counts, axis=0) - counts < target)
        last = tl.max(tl.where(is_among, id, -1), axis=0)
        part = tl.sum(tl.where(is_among, counts, 0), axis=0)
        kept = tl.where(index < segment, between, tl.where(index == segment, part, 0))
    return low, high, last, kept


@triton.jit
def _mix(x):
    """The finalizer of `data.counter_random`."""
    x = (x ^ (x >> 30)) * tl.full((), 0xBF58476D1CE4E5B9, tl.uint64)
    x = (x ^ (x >> 27)) * tl.full((), 0x94D049BB133111EB, tl.uint64)
    return x ^ (x >> 31)


@triton.jit
def _pick(
    stream, state, work, table, chosen, last_position, NO_ID: tl.constexpr, SEPARATOR: tl.constexpr,
    TOP_P: tl.constexpr, PENALTY: tl.constexpr, NUM_TOPS: tl.constexpr, VOCAB: tl.constexpr,
    WIDTH: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Pick the id at which a random fraction of the kept mass is reached: its segment first."""
    wait(EARLY)
    row = tl.program_id(0)
    num: tl.constexpr = triton.cdiv(VOCAB, _SEGMENT)
    mass = _of_segments(work.likely, row, 0.0, num)
    mass_above = _of_segments(work.above, row, 0.0, num)
    tops = _of_segments(stream.tops, row, float("-inf"), NUM_TOPS)
    key = tl.load(state.keys + row).to(tl.uint64, bitcast=True)
    count = tl.load(state.counts + row)
    position = tl.minimum(tl.load(state.positions + row) + 1, last_position)
    is_greedy = tl.load(state.temperature + row) == 0
    low = _bits(tl.exp(tl.load(state.log_min_p + row)))
    high = low
    last = tl.full((), -1, tl.int32)
    if TOP_P:
        low_of_p, high_of_p, last_of_p, kept = _threshold(work, row, False, VOCAB)
        if _is_active(state, row, False) & (low_of_p >= low):
            low, high, last = low_of_p, high_of_p, last_of_p
            mass = mass_above + kept.to(tl.float32) / _ONE
    bits = _mix(_mix(count.to(tl.uint64) + key) ^ key)
    number = (bits >> 32).to(tl.float64) * 2.3283064365386963e-10
    mark = (number * tl.sum(mass, axis=0).to(tl.float64)).to(tl.float32)
    # At temperature 0: the best id, the lowest of ties.
    mark = tl.where(is_greedy, 0.0, mark)
    index = tl.arange(0, triton.next_power_of_2(num))
    before = tl.cumsum(mass, axis=0) - mass
    # The last non-empty segment that starts at or before the mark.
    segment = tl.max(tl.where((mass > 0) & (before <= mark), index, 0), axis=0)
    start = tl.sum(tl.where(index == segment, before, 0.0), axis=0)
    column, weight = _load(work.weights, row, segment, 0.0, VOCAB)
    is_kept = (_bits(weight) >= high) | ((_bits(weight) >= low) & (column <= last))
    weight = tl.where(is_kept, weight, 0.0)
    is_hit = (weight > 0) & (start + tl.cumsum(weight, axis=0) > mark)
    # Sums in another order differ in the last digit: the mark may be past the end.
    last_kept = tl.max(tl.where(weight > 0, column, 0), axis=0)
    found_id = tl.minimum(tl.min(tl.where(is_hit, column, _NONE), axis=0), last_kept)
    top = tl.max(tops, axis=0)
    is_finite = (top > float("-inf")) & (top < float("inf"))
    tl.store(chosen + row, tl.where(is_finite, found_id, NO_ID).to(tl.int64))
    if PENALTY:
        tl.store(state.seen + row.to(tl.int64) * VOCAB + found_id, 1)
    tl.store(state.ids + row, found_id.to(tl.int64))
    embed_row(found_id, table, stream, row, WIDTH)
    tl.store(state.positions + row, position)
    if SEPARATOR >= 0:
        tl.store(state.starts + row, position, mask=found_id == SEPARATOR)
    tl.store(state.counts + row, count + 1)
