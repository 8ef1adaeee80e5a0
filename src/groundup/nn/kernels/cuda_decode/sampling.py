"""The output layer, and sampling of the next id as in `generation.sampling.sample`, on CUDA.

The output layer also sums the weights of every 64 logits, so that one program per row finds the id
drawn from these sums and 64 logits. A row with top-k, top-p or min-p then reads the larger logits:
the number and weight of the ids before the drawn one decide whether it is kept. If it is not, the
next draw is from those ids. The order of a row's sums does not depend on the other rows.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from groundup.nn.kernels.cuda_decode.launch import options, wait
from groundup.nn.kernels.cuda_decode.matmul import (
    LOGITS_TILE,
    Buffers,
    embed_row,
    load,
    row_scale,
    sums_of_squares,
)

# A weight of 1 as an integer: sums of integers are the same in any order.
_ONE = tl.constexpr(1 << 40)
# Tiles of logits read at once, and warps of the program of a row, which is bound by latency.
_CHUNK, _NUM_WARPS = tl.constexpr(128), 16
_NONE = tl.constexpr(0x7FFFFFFF)


class Rules(NamedTuple):
    """The rules used by any row; kernels are compiled without the others."""

    top_k: bool = True
    keeps_all: bool = False
    """Whether no row has top-k, top-p or min-p."""
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


def to_logits(
    stream: Buffers,
    norm: tuple[float, float],
    weight: Tensor,
    state: State,
    rules: Rules,
    absent: Tensor | None = None,
) -> None:
    """logits = norm(stream) weightᵀ, where the stream contains the gain of the norm.

    norm: its eps, and a factor on the gain in the stream.
    absent: mask of ids that are not allowed, if any; their logits are -inf.
    """
    num_rows, depth = stream.half.shape
    rows = min(max(triton.next_power_of_2(num_rows), 16), 64)
    grid = triton.cdiv(len(weight), LOGITS_TILE.value), triton.cdiv(num_rows, rows)
    tensors = (stream, weight, weight if absent is None else absent, state)
    sizes = {"DEPTH": depth, "GAPS": absent is not None, "PENALTY": rules.penalty}
    step, num_stages = (64, 4) if rows == 64 else (128, 3)
    sizes |= options(num_warps=4, num_stages=num_stages, ROWS=rows, STEP=step)
    _logits[grid](*tensors, num_rows, len(weight), *norm, **sizes)


def sample(
    stream: Buffers,
    state: State,
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
    num_rows, vocab_size = stream.logits.shape
    sizes = {"VOCAB": vocab_size, "WIDTH": table.shape[1], "NO_ID": no_id, "SEPARATOR": separator}
    sizes |= {"TOP_K": rules.top_k, "KEEPS_ALL": rules.keeps_all, "PENALTY": rules.penalty}
    sizes |= options(num_warps=_NUM_WARPS)
    _sample[(num_rows,)](stream, state, table, chosen, last_position, **sizes)


@triton.jit
def _penalized(value, penalty, row, column, fits, state, VOCAB: tl.constexpr):
    """Divide positive logits of seen ids by the penalty, and multiply negative ones.

    Non-finite logits are unchanged; finite ones stay finite.
    """
    is_seen = tl.load(state.seen + row.to(tl.int64) * VOCAB + column, mask=fits, other=0) > 0
    lowered = tl.where(value > 0, value / penalty, value * penalty)
    lowered = tl.minimum(tl.maximum(lowered, -3.4028234663852886e38), 3.4028234663852886e38)
    is_finite = (value > float("-inf")) & (value < float("inf"))
    return tl.where(is_seen & is_finite, lowered, value)


@triton.jit
def _weight(value, top, scale):
    """Probability relative to that of the logit `top`; greedy if the scale is infinite."""
    return tl.where(value == top, 1.0, tl.exp2((value - top) * scale))


@triton.jit
def _scale(temperature):
    return tl.where(temperature > 0, 1.4426950408889634 / temperature, float("inf"))


@triton.jit(do_not_specialize=["num_rows"])
def _logits(
    stream, weight, absent, state, num_rows, vocab, eps, factor, DEPTH: tl.constexpr,
    ROWS: tl.constexpr, STEP: tl.constexpr, GAPS: tl.constexpr, PENALTY: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    wait(EARLY)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * LOGITS_TILE + tl.arange(0, LOGITS_TILE)
    total = tl.zeros((LOGITS_TILE, ROWS), dtype=tl.float32)
    for start in range(0, DEPTH, STEP):
        place = start + tl.arange(0, STEP)
        value = load(stream.half, row[None, :], place[:, None], num_rows, DEPTH)
        tile = load(weight, column.to(tl.int64)[:, None], place[None, :], vocab, DEPTH)
        total = tl.dot(tile, value, total)
    sums = sums_of_squares(stream.squares, row, num_rows, DEPTH)
    total *= (factor * row_scale(sums, eps, DEPTH))[None, :]
    if GAPS:
        is_absent = tl.load(absent + column, mask=column < vocab, other=True)
        total = tl.where(is_absent[:, None], float("-inf"), total)
    fits = (row < num_rows)[None, :] & (column < vocab)[:, None]
    scale = _scale(tl.load(state.temperature + row, mask=row < num_rows, other=1.0))
    tl.store(stream.logits + row.to(tl.int64)[None, :] * vocab + column[:, None], total, mask=fits)
    if PENALTY:
        penalty = tl.load(state.penalty + row, mask=row < num_rows, other=1.0)[None, :]
        total = _penalized(total, penalty, row[None, :], column[:, None], fits, state, vocab)
    total = tl.where(fits, tl.where(total == total, total, float("inf")), float("-inf"))
    top = tl.max(total, axis=0)
    weights = _weight(total, top[None, :], scale[None, :])
    masses = tl.sum((weights * _ONE).to(tl.int64), axis=0)
    entry = row * tl.num_programs(0) + tl.program_id(0)
    tl.store(stream.tops + entry, top, mask=row < num_rows)
    tl.store(stream.masses + entry, masses.to(tl.float32) / _ONE, mask=row < num_rows)


@triton.jit
def _load(stream, state, row, tile, PENALTY: tl.constexpr, VOCAB: tl.constexpr):
    """Load tiles of a row's logits, with the penalty, and return their ids as well."""
    column = tile[:, None] * LOGITS_TILE + tl.arange(0, LOGITS_TILE)[None, :]
    fits = column < VOCAB
    value = tl.load(
        stream.logits + row.to(tl.int64) * VOCAB + column, mask=fits, other=float("-inf")
    )
    if PENALTY:
        penalty = tl.load(state.penalty + row)
        value = _penalized(value, penalty, row, column, fits, state, VOCAB)
    return column, value


@triton.jit
def _draw(
    number, masses, bound, bound_id, top, scale, stream, state, row,
    PENALTY: tl.constexpr, VOCAB: tl.constexpr,
):  # fmt: skip
    """Return the id at which a fraction of the mass is reached, and its logit. Only ids before
    `bound_id`, whose logit is `bound`, in the order of probability are considered."""
    index = tl.arange(0, masses.shape[0])
    mark = (number.to(tl.float64) * 2.3283064365386963e-10 * tl.sum(masses, axis=0)).to(tl.float32)
    # At temperature 0: the best id, the lowest of ties.
    mark = tl.where(scale == float("inf"), 0.0, mark)
    begin = tl.cumsum(masses, axis=0) - masses
    # The last tile that is not empty and starts at or before the mark.
    tile = tl.max(tl.where((masses > 0) & (begin <= mark), index, 0), axis=0)
    start = tl.sum(tl.where(index == tile, begin, 0.0), axis=0)
    column, value = _load(stream, state, row, tile + tl.arange(0, 1), PENALTY, VOCAB)
    is_before = (value > bound) | ((value == bound) & (column < bound_id))
    weight = tl.where(is_before, _weight(value, top, scale), 0.0)
    is_hit = (weight > 0) & (start + tl.cumsum(weight, axis=1) > mark)
    # Sums in another order differ in the last digit: the mark may be past the end of the tile.
    last = tl.max(tl.max(tl.where(weight > 0, column, 0), axis=1), axis=0)
    id = tl.minimum(tl.min(tl.min(tl.where(is_hit, column, _NONE), axis=1), axis=0), last)
    found = tl.max(tl.max(tl.where(column == id, value, float("-inf")), axis=1), axis=0)
    return id, found


@triton.jit
def _sum_before(
    value, id, tops, top, scale, stream, state, row,
    COUNTS: tl.constexpr, PENALTY: tl.constexpr, VOCAB: tl.constexpr,
):  # fmt: skip
    """Return the weight of the ids before an id in the order of probabilities, and their number
    with COUNTS; replace the masses of the tiles by those of these ids."""
    num_tiles: tl.constexpr = triton.cdiv(VOCAB, LOGITS_TILE)
    # Read the tiles that can have such ids, usually few.
    has_some = (tops >= value).to(tl.int32)
    tiles, masses = stream.tiles + row * num_tiles, stream.masses + row * num_tiles
    place = tl.cumsum(has_some, axis=0) - 1
    tl.store(tiles + place, tl.arange(0, tops.shape[0]), mask=has_some > 0)
    num_left = tl.sum(has_some, axis=0)
    tl.debug_barrier()
    mass = tl.zeros((_CHUNK,), dtype=tl.float32)
    count = tl.zeros((_CHUNK,), dtype=tl.int32)
    entry = tiles + tl.arange(0, _CHUNK)
    while num_left > 0:
        fits = tl.arange(0, _CHUNK) < num_left
        tile = tl.load(entry, mask=fits, other=num_tiles)
        column, other = _load(stream, state, row, tile, PENALTY, VOCAB)
        is_before = (other > value) | ((other == value) & (column < id))
        sums = tl.sum(tl.where(is_before, tl.exp2((other - top) * scale), 0.0), axis=1)
        tl.store(masses + tile, sums, mask=fits)
        mass += sums
        if COUNTS:
            count += tl.sum(is_before.to(tl.int32), axis=1)
        entry += _CHUNK
        num_left -= _CHUNK
    tl.debug_barrier()
    return tl.sum(mass, axis=0), tl.sum(count, axis=0)


@triton.jit
def _mass_of_top_k(
    top_k, tops, top, scale, stream, state, row, PENALTY: tl.constexpr, VOCAB: tl.constexpr
):
    """Bisect for the logit of the k-th id; return the weight of the first k ids."""
    # Beyond it, weights round to 0.
    low, high = top - 150.0 / scale, top
    above, num_above = tl.full((), 0.0, tl.float32), tl.full((), 0, tl.int32)
    middle = (low + high) / 2
    while (low < middle) & (middle < high) & (num_above != top_k):
        if tl.sum((tops > middle).to(tl.int32), axis=0) > top_k:
            low = middle
        else:
            mass, count = _sum_before(
                middle, 0, tops, top, scale, stream, state, row, True, PENALTY, VOCAB
            )
            if count > top_k:
                low = middle
            else:
                high, above, num_above = middle, mass, count
        middle = (low + high) / 2
    # What is missing ties at `high`.
    return above + (top_k - num_above).to(tl.float32) * _weight(high, top, scale)


@triton.jit
def _mix(x):
    """The finalizer of `data.counter_random`."""
    x = (x ^ (x >> 30)) * tl.full((), 0xBF58476D1CE4E5B9, tl.uint64)
    x = (x ^ (x >> 27)) * tl.full((), 0x94D049BB133111EB, tl.uint64)
    return x ^ (x >> 31)


@triton.jit
def _next(bits):
    """The number of the next draw, as in `generation.sampling`."""
    bits = (bits + tl.full((), 0x9E3779B9, tl.uint64)) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 16)) * tl.full((), 0x85EBCA6B, tl.uint64)) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 13)) * tl.full((), 0xC2B2AE35, tl.uint64)) & 0xFFFFFFFF
    return bits ^ (bits >> 16)


@triton.jit
def _sample(
    stream, state, table, chosen, last_position, TOP_K: tl.constexpr, KEEPS_ALL: tl.constexpr,
    PENALTY: tl.constexpr, NO_ID: tl.constexpr, SEPARATOR: tl.constexpr, VOCAB: tl.constexpr,
    WIDTH: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait(EARLY)
    row = tl.program_id(0)
    num_tiles: tl.constexpr = triton.cdiv(VOCAB, LOGITS_TILE)
    index = tl.arange(0, triton.next_power_of_2(num_tiles))
    entry, fits = row * num_tiles + index, index < num_tiles
    # Issue all loads first, so that their latencies overlap.
    tops = tl.load(stream.tops + entry, mask=fits, other=float("-inf"))
    masses = tl.load(stream.masses + entry, mask=fits, other=0.0)
    scale = _scale(tl.load(state.temperature + row))
    top_k, top_p = tl.load(state.top_k + row).to(tl.int32), tl.load(state.top_p + row)
    log2_min_p = tl.load(state.log_min_p + row) * 1.4426950408889634
    key = tl.load(state.keys + row).to(tl.uint64, bitcast=True)
    count = tl.load(state.counts + row)
    position = tl.minimum(tl.load(state.positions + row) + 1, last_position)
    top = tl.max(tops, axis=0)
    is_finite = (top > float("-inf")) & (top < float("inf"))
    masses *= _weight(tops, top, scale)
    bits = _mix(_mix(count.to(tl.uint64) + key) ^ key) >> 32
    id, value = _draw(
        bits, masses, float("-inf"), 0, top, scale, stream, state, row, PENALTY, VOCAB
    )
    if not KEEPS_ALL:
        is_limited = (top_k > 0) | (top_p < 1.0) | (log2_min_p > float("-inf"))
        again = is_limited & is_finite & (scale < float("inf"))
        target = tl.sum(masses, axis=0)
        if TOP_K:  # noqa: SIM102 - one is known when it is compiled
            if again & (top_k > 0) & (top_p < 1.0):
                target = _mass_of_top_k(top_k, tops, top, scale, stream, state, row, PENALTY, VOCAB)
        target *= top_p
        while again:
            mass, number = _sum_before(
                value, id, tops, top, scale, stream, state, row, TOP_K, PENALTY, VOCAB
            )
            is_kept = (mass < target) & ((value - top) * scale >= log2_min_p)
            if TOP_K:
                is_kept &= (top_k == 0) | (number < top_k)
            # Always keep the most likely id. In unused rows, the state could be anything.
            again = (not is_kept) & (mass > 0)
            if again:
                bits = _next(bits)
                masses = tl.load(stream.masses + entry, mask=tops >= value, other=0.0)
                id, value = _draw(
                    bits, masses, value, id, top, scale, stream, state, row, PENALTY, VOCAB
                )
    tl.store(chosen + row, tl.where(is_finite, id, NO_ID).to(tl.int64))
    if PENALTY:
        tl.store(state.seen + row.to(tl.int64) * VOCAB + id, 1)
    tl.store(state.ids + row, id.to(tl.int64))
    embed_row(id, table, stream, row, WIDTH)
    tl.store(state.positions + row, position)
    if SEPARATOR >= 0:
        tl.store(state.starts + row, position, mask=id == SEPARATOR)
    tl.store(state.counts + row, count + 1)
