"""Sampling of the next id on CUDA: the rules of `generation.sampling` without a sort.

The likeliest ids whose number (top-k) or mass (top-p) reaches a target are those above a threshold.
Weights are compared by their bits, as integers. The launch that computes them adds them to narrow
bins by size, in integers, whose sum is the same in any order (`_add_to_bins`). `_find` sums a row's
bins until the target is reached; `_split` lists the ids of that bin, and `_threshold` compares each
with each. Where more than 64 ids share the bin, and so differ by less than 0.4%, its lower ids are
kept first. A row is cut into segments of one size, a program each, and sums of segments are added
in an order that does not depend on the other rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from groundup.nn.kernels.cuda_decode.launch import begin, options, wait

_SEGMENT = tl.constexpr(1024)
# 256 bins for each factor of two, from a weight of 1 down to 2^-32; the last is for what is less,
# and not filled.
_BINS, _SHIFT = tl.constexpr(8192), tl.constexpr(15)
# The bits of 1.0, the greatest weight, and a weight of 1 in a bin.
_TOP_BITS, _ONE = tl.constexpr(0x3F800000), tl.constexpr(1 << 40)
# Bins that are emptied at once, and summed at once.
_CHUNK, _SPAN = tl.constexpr(1024), tl.constexpr(4096)
# Ids of a bin that can be listed.
_LISTED = tl.constexpr(64)
_NONE = tl.constexpr(0x7FFFFFFF)


class Rules(NamedTuple):
    """Which rules any row has; the others need no launches."""

    top_k: bool = True
    top_p: bool = True
    penalty: bool = False


class State(NamedTuple):
    """What the next step of each row begins with."""

    ids: Tensor
    positions: Tensor
    counts: Tensor
    """How many ids have been sampled."""
    keys: Tensor
    """Of the random numbers."""
    top_k: Tensor
    """0 for none."""
    temperature: Tensor
    top_p: Tensor
    """1 for none."""
    log_min_p: Tensor
    penalty: Tensor
    seen: Tensor
    """Which ids the text of each row holds, (rows, vocab), for rows with a repetition penalty."""


class Workspace(NamedTuple):
    """What the launches of a step leave each other."""

    weights: Tensor
    """(rows, 2, vocab): of each id, 1 for the likeliest; and after top-k, 0 for what is out."""
    masses: Tensor
    """The sum of the weights of each segment."""
    likely: Tensor
    """The same without those below min-p."""
    bins: Tensor
    """The weights, or their number, by size; empty between searches."""
    found: Tensor
    """(rows, 2): the bin with the threshold, and what lies above it."""
    above: Tensor
    """The mass of each segment above that bin."""
    num_between: Tensor
    """How many ids of each segment are in that bin."""
    num_listed: Tensor
    """(rows, 2): all of them, for top-p and for top-k."""
    listed: Tensor
    """The bits of their weights, and their ids; likewise."""

    @classmethod
    def make(cls, num_rows: int, vocab_size: int, device: torch.device) -> Workspace:
        num = triton.cdiv(vocab_size, _SEGMENT.value)
        floats = torch.empty(3, num_rows, num, device=device)
        whole = torch.empty(0, dtype=torch.int32, device=device)
        return cls(
            weights=floats.new_empty(num_rows, 2, vocab_size),
            masses=floats[0],
            likely=floats[1],
            bins=torch.zeros(num_rows, _BINS.value, dtype=torch.int64, device=device),
            found=torch.empty(num_rows, 2, dtype=torch.int64, device=device),
            above=floats[2],
            num_between=whole.new_empty(num_rows, num),
            num_listed=whole.new_empty(num_rows, 2),
            listed=whole.new_empty(num_rows, 2, _LISTED.value, 2),
        )


def sample(
    logits: Tensor,
    tops: Tensor,
    state: State,
    work: Workspace,
    chosen: Tensor,
    last_position: int,
    no_id: int,
    rules: Rules,
) -> None:
    """Sample an id for each row of `logits` by its state, and make the state the next token's.

    tops: the highest logit of each part of a row after the repetition penalty, the parts of any
        size; +inf if one is no number.
    chosen: the ids, `no_id` where logits are not finite.
    last_position: where positions end: what comes after is nobody's text, but must lie in tables.
    """
    num_rows, vocab_size = logits.shape
    grid = (triton.cdiv(vocab_size, _SEGMENT.value), num_rows)
    sizes = {"VOCAB": vocab_size, **options(num_warps=4)}
    num_tops, penalty = {"NUM_TOPS": tops.shape[1]}, {"PENALTY": rules.penalty}
    searches = rules.top_k or rules.top_p
    _weigh[grid](
        logits, tops, state, work,
        COUNTS=rules.top_k, SEARCH=searches, **penalty, **num_tops, **sizes,
    )  # fmt: skip
    for counts in (True, False):
        if rules.top_k if counts else rules.top_p:
            is_cut = rules.top_k and not counts
            _find[(num_rows,)](state, work, COUNTS=counts, **(sizes | {"num_warps": 8}))
            _split[grid](state, work, COUNTS=counts, CUT=is_cut, **sizes)
            if counts:
                _cut[grid](state, work, SEARCH=rules.top_p, **sizes)
    _pick[(num_rows,)](
        tops, state, work, chosen, last_position,
        NO_ID=no_id, CUT=rules.top_k, TOP_P=rules.top_p, **penalty, **num_tops, **sizes,
    )  # fmt: skip


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
def _bits(weight):
    """Integers in the order of weights, which are never negative."""
    return weight.to(tl.int32, bitcast=True)


@triton.jit
def _columns(segment):
    return segment * _SEGMENT + tl.arange(0, _SEGMENT)


@triton.jit
def _load(numbers, line, segment, other, VOCAB: tl.constexpr):
    """A segment of one line of a table with the width of the vocabulary."""
    column = _columns(segment)
    return tl.load(numbers + line.to(tl.int64) * VOCAB + column, mask=column < VOCAB, other=other)


@triton.jit
def _of_segments(numbers, row, other, NUM: tl.constexpr):
    """What the parts of a row left, a number each."""
    index = tl.arange(0, triton.next_power_of_2(NUM))
    return tl.load(numbers + row * NUM + index, mask=index < NUM, other=other)


@triton.jit
def _is_active(state, row, COUNTS: tl.constexpr, VOCAB: tl.constexpr):
    """Whether the row has the rule: top-k if it counts ids, else top-p."""
    if COUNTS:
        top_k = tl.load(state.top_k + row)
        active = (top_k > 0) & (top_k < VOCAB)
    else:
        active = tl.load(state.top_p + row) < 1.0
    return active


@triton.jit
def _target(state, work, row, COUNTS: tl.constexpr, NUM: tl.constexpr):
    """The number or mass that the kept ids must reach."""
    if COUNTS:
        target = tl.load(state.top_k + row).to(tl.float32)
    else:
        mass = tl.sum(_of_segments(work.masses, row, 0.0, NUM), axis=0)
        target = mass * tl.load(state.top_p + row)
    return target


@triton.jit
def _min_p_bits(state, row):
    """The bits of the least weight that min-p keeps."""
    return _bits(tl.exp(tl.load(state.log_min_p + row)))


@triton.jit
def _add_to_bins(weight, work, row, spare, COUNTS: tl.constexpr, VOCAB: tl.constexpr):
    """spare: a mass that is not needed to reach the target."""
    bits = _bits(weight)
    number = (_TOP_BITS - bits) >> _SHIFT
    counts = (bits > 0) & (bits <= _TOP_BITS) & (number < _BINS - 1)
    if COUNTS:
        added = (weight > 0).to(tl.int64)
    else:
        added = (weight * _ONE).to(tl.int64)
        # All ids that have so little have no more than that together; a tenth of it is left for
        # what was rounded.
        counts &= weight > 0.9 * spare / VOCAB
    tl.atomic_add(work.bins + row * _BINS + number, added, mask=counts, sem="relaxed")


@triton.jit
def _hand_on(
    weight, least_mass, state, work, row, segment,
    CUT: tl.constexpr, COUNTS: tl.constexpr, SEARCH: tl.constexpr, VOCAB: tl.constexpr,
):  # fmt: skip
    """What the next launches need of a segment's weights; the row has `least_mass` or more."""
    num: tl.constexpr = triton.cdiv(VOCAB, _SEGMENT)
    column = _columns(segment)
    line = (row * 2 + CUT).to(tl.int64)
    tl.store(work.weights + line * VOCAB + column, weight, mask=column < VOCAB)
    tl.store(work.masses + row * num + segment, tl.sum(weight, axis=0))
    is_likely = _bits(weight) >= _min_p_bits(state, row)
    tl.store(work.likely + row * num + segment, tl.sum(tl.where(is_likely, weight, 0.0), axis=0))
    if SEARCH:  # noqa: SIM102 - one is known when it is compiled
        if _is_active(state, row, COUNTS, VOCAB):
            spare = least_mass * (1.0 - tl.load(state.top_p + row))
            _add_to_bins(tl.where(column < VOCAB, weight, -1.0), work, row, spare, COUNTS, VOCAB)


@triton.jit
def _weigh(
    logits, tops, state, work,
    COUNTS: tl.constexpr, SEARCH: tl.constexpr, PENALTY: tl.constexpr, NUM_TOPS: tl.constexpr,
    VOCAB: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Probabilities but for a factor; without a temperature all but the best are out."""
    wait(EARLY)
    begin(EARLY)
    segment, row = tl.program_id(0), tl.program_id(1)
    all_tops = _of_segments(tops, row, float("-inf"), NUM_TOPS)
    top = tl.max(all_tops, axis=0)
    temperature = tl.load(state.temperature + row)
    value = _load(logits, row, segment, float("-inf"), VOCAB)
    if PENALTY:
        is_seen = _load(state.seen, row, segment, 0, VOCAB) > 0
        value = penalized(value, is_seen, tl.load(state.penalty + row))
    least_mass = tl.full((), 1.0, tl.float32)
    if temperature == 0:
        weight = (value == top).to(tl.float32)
    else:
        weight = tl.exp((value - top) / temperature)
        least_mass = tl.sum(tl.exp((all_tops - top) / temperature), axis=0)
    _hand_on(weight, least_mass, state, work, row, segment, False, COUNTS, SEARCH, VOCAB)
    if segment == 0:
        tl.store(work.num_listed + row * 2, 0)
        tl.store(work.num_listed + row * 2 + 1, 0)


@triton.jit
def _find(state, work, COUNTS: tl.constexpr, VOCAB: tl.constexpr, EARLY: tl.constexpr):
    """The first bin, from the greatest weights on, with which the target is reached."""
    wait(EARLY)
    begin(EARLY)
    row = tl.program_id(0)
    if _is_active(state, row, COUNTS, VOCAB):
        target = _target(state, work, row, COUNTS, triton.cdiv(VOCAB, _SEGMENT))
        aim = (target if COUNTS else target * _ONE).to(tl.int64)
        above = tl.full((), 0, tl.int64)
        start = tl.full((), 0, tl.int32)
        number = tl.full((), _NONE, tl.int32)
        while (number == _NONE) & (start < _BINS):
            index = start + tl.arange(0, _SPAN)
            part = tl.load(work.bins + row * _BINS + index)
            is_reached = above + tl.cumsum(part, axis=0) >= aim
            number = tl.min(tl.where(is_reached, index, _NONE), axis=0)
            above += tl.sum(tl.where(is_reached, 0, part), axis=0)
            start += _SPAN
        tl.store(work.found + row * 2, tl.minimum(number, _BINS - 1).to(tl.int64))
        tl.store(work.found + row * 2 + 1, above)


@triton.jit
def _bounds(work, row):
    """The least bits of the bin that was found, and the least above it."""
    number = tl.load(work.found + row * 2).to(tl.int32)
    low = tl.where(number == _BINS - 1, 1, _TOP_BITS + 1 - ((number + 1) << _SHIFT))
    return low, _TOP_BITS + 1 - (number << _SHIFT)


@triton.jit
def _split(
    state, work,
    COUNTS: tl.constexpr, CUT: tl.constexpr, VOCAB: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Of a segment the mass above the bin that was found and the number of ids in it; these are
    listed, in any order, with their bits."""
    wait(EARLY)
    begin(EARLY)
    segment, row = tl.program_id(0), tl.program_id(1)
    num: tl.constexpr = triton.cdiv(VOCAB, _SEGMENT)
    if _is_active(state, row, COUNTS, VOCAB):
        low, high = _bounds(work, row)
        weight = _load(work.weights, row * 2 + CUT, segment, 0.0, VOCAB)
        bits = _bits(weight)
        is_between = ((bits >= low) & (bits < high)).to(tl.int32)
        num_between = tl.sum(is_between, axis=0)
        mass = tl.sum(tl.where(bits >= high, weight, 0.0), axis=0)
        tl.store(work.above + row * num + segment, mass)
        tl.store(work.num_between + row * num + segment, num_between)
        if num_between > 0:
            line = row * 2 + COUNTS
            first = tl.atomic_add(work.num_listed + line, num_between, sem="relaxed")
            index = first + tl.cumsum(is_between, axis=0) - 1
            fits = (is_between > 0) & (index < _LISTED)
            entry = work.listed + (line * _LISTED + index) * 2
            tl.store(entry, bits, mask=fits)
            tl.store(entry + 1, _columns(segment), mask=fits)
        # Nothing needs the bins any more; the next search finds them empty.
        for start in range(segment * _CHUNK, _BINS, num * _CHUNK):
            number = start + tl.arange(0, _CHUNK)
            tl.store(work.bins + row * _BINS + number, tl.zeros((_CHUNK,), dtype=tl.int64))


@triton.jit
def _is_kept(bits, column, low, high, last):
    """Those above the threshold, and at it the ids up to the last one that is needed."""
    return (bits >= high) | ((bits >= low) & (column <= last))


@triton.jit
def _threshold(state, work, row, COUNTS: tl.constexpr, CUT: tl.constexpr, VOCAB: tl.constexpr):
    """The least bits at and above the threshold, the last id at it that is needed, and of each
    segment the mass that is kept of the bin that was found."""
    num: tl.constexpr = triton.cdiv(VOCAB, _SEGMENT)
    target = _target(state, work, row, COUNTS, num)
    low, high = _bounds(work, row)
    above = tl.load(work.found + row * 2 + 1).to(tl.float64)
    if not COUNTS:
        above /= _ONE
    counts = _of_segments(work.num_between, row, 0, num)
    num_between = tl.sum(counts, axis=0)
    index = tl.arange(0, triton.next_power_of_2(num))
    if num_between <= _LISTED:
        number = tl.arange(0, _LISTED)
        is_listed = number < num_between
        entry = work.listed + ((row * 2 + COUNTS) * _LISTED + number) * 2
        bits = tl.load(entry, mask=is_listed, other=0)
        column = tl.load(entry + 1, mask=is_listed, other=0)
        weight = bits.to(tl.float32, bitcast=True).to(tl.float64)
        # In float64, where the sums of so few and similar numbers are exact, and so have no order.
        value = tl.where(is_listed, 1.0 if COUNTS else weight, 0.0).to(tl.float64)
        is_before = bits[:, None] > bits[None, :]
        is_before |= (bits[:, None] == bits[None, :]) & (column[:, None] < column[None, :])
        before = above + tl.sum(tl.where(is_before, value[:, None], 0.0), axis=0)
        is_needed = is_listed & (before < target)
        low = tl.min(tl.where(is_needed, bits, high), axis=0)
        high = low + 1
        last = tl.max(tl.where(is_needed & (bits == low), column, -1), axis=0)
        is_in = is_needed[None, :] & ((column // _SEGMENT)[None, :] == index[:, None])
        kept = tl.sum(tl.where(is_in, weight[None, :], 0.0), axis=1).to(tl.float32)
    else:
        kept = tl.zeros((triton.next_power_of_2(num),), dtype=tl.float32)
        last = tl.full((), -1, tl.int32)
        so_far = above.to(tl.float32)
        segment = tl.min(tl.where(counts > 0, index, num), axis=0)
        while (segment < num) & (so_far < target):
            weight = _load(work.weights, row * 2 + CUT, segment, 0.0, VOCAB)
            bits = _bits(weight)
            is_between = (bits >= low) & (bits < high)
            value = tl.where(is_between, 1.0 if COUNTS else weight, 0.0)
            is_needed = is_between & (so_far + tl.cumsum(value, axis=0) - value < target)
            last = tl.maximum(last, tl.max(tl.where(is_needed, _columns(segment), -1), axis=0))
            mass = tl.sum(tl.where(is_needed, weight, 0.0), axis=0)
            kept = tl.where(index == segment, mass, kept)
            so_far += tl.sum(value, axis=0)
            segment = tl.min(tl.where((counts > 0) & (index > segment), index, num), axis=0)
    return low, high, last, kept


@triton.jit
def _cut(state, work, SEARCH: tl.constexpr, VOCAB: tl.constexpr, EARLY: tl.constexpr):
    """The weights after top-k."""
    wait(EARLY)
    begin(EARLY)
    segment, row = tl.program_id(0), tl.program_id(1)
    weight = _load(work.weights, row * 2, segment, 0.0, VOCAB)
    if _is_active(state, row, True, VOCAB):
        low, high, last, _ = _threshold(state, work, row, True, False, VOCAB)
        is_kept = _is_kept(_bits(weight), _columns(segment), low, high, last)
        weight = tl.where(is_kept, weight, 0.0)
    # The greatest weight is 1.
    _hand_on(weight, 1.0, state, work, row, segment, True, False, SEARCH, VOCAB)


@triton.jit
def _mix(x):
    """The finaliser of `data.counter_random`."""
    x = (x ^ (x >> 30)) * tl.full((), 0xBF58476D1CE4E5B9, tl.uint64)
    x = (x ^ (x >> 27)) * tl.full((), 0x94D049BB133111EB, tl.uint64)
    return x ^ (x >> 31)


@triton.jit
def _pick(
    tops, state, work, chosen, last_position,
    NO_ID: tl.constexpr, CUT: tl.constexpr, TOP_P: tl.constexpr, PENALTY: tl.constexpr,
    NUM_TOPS: tl.constexpr, VOCAB: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The id at which a random part of the mass that is kept is reached; first its segment."""
    wait(EARLY)
    begin(EARLY)
    row = tl.program_id(0)
    num: tl.constexpr = triton.cdiv(VOCAB, _SEGMENT)
    top = tl.max(_of_segments(tops, row, float("-inf"), NUM_TOPS), axis=0)
    index = tl.arange(0, triton.next_power_of_2(num))
    low = _min_p_bits(state, row)
    high = low
    last = tl.full((), -1, tl.int32)
    mass = _of_segments(work.likely, row, 0.0, num)
    if TOP_P:  # noqa: SIM102 - one is known when it is compiled
        if _is_active(state, row, False, VOCAB):
            low_of_p, high_of_p, last_of_p, kept = _threshold(state, work, row, False, CUT, VOCAB)
            if low_of_p >= low:
                low = low_of_p
                high = high_of_p
                last = last_of_p
                mass = _of_segments(work.above, row, 0.0, num) + kept
    key = tl.load(state.keys + row).to(tl.uint64, bitcast=True)
    count = tl.load(state.counts + row)
    bits = _mix(_mix(count.to(tl.uint64) + key) ^ key)
    number = (bits >> 32).to(tl.float64) * 2.3283064365386963e-10
    mark = (number * tl.sum(mass, axis=0).to(tl.float64)).to(tl.float32)
    # Without a temperature the best with the lowest id.
    mark = tl.where(tl.load(state.temperature + row) == 0, 0.0, mark)
    before = tl.cumsum(mass, axis=0) - mass
    # Of the segments that hold anything, the last one up to and with that of the mark.
    segment = tl.max(tl.where((mass > 0) & (before <= mark), index, 0), axis=0)
    start = tl.sum(tl.where(index == segment, before, 0.0), axis=0)
    weight = _load(work.weights, row * 2 + CUT, segment, 0.0, VOCAB)
    column = _columns(segment)
    weight = tl.where(_is_kept(_bits(weight), column, low, high, last), weight, 0.0)
    is_hit = (weight > 0) & (start + tl.cumsum(weight, axis=0) > mark)
    first_hit = tl.min(tl.where(is_hit, column, _NONE), axis=0)
    # Sums in another order may differ in the last digit, and leave the mark beyond the end.
    last_kept = tl.max(tl.where(weight > 0, column, 0), axis=0)
    found_id = tl.where(first_hit == _NONE, last_kept, first_hit)
    is_finite = (top > float("-inf")) & (top < float("inf"))
    known_id = tl.where(is_finite, found_id, 0)
    tl.store(chosen + row, tl.where(is_finite, found_id, NO_ID).to(tl.int64))
    if PENALTY:
        tl.store(state.seen + row.to(tl.int64) * VOCAB + known_id, 1)
    tl.store(state.ids + row, known_id.to(tl.int64))
    position = tl.load(state.positions + row)
    tl.store(state.positions + row, tl.minimum(position + 1, last_position))
    tl.store(state.counts + row, count + 1)
