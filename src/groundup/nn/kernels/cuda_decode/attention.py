"""Attention of one token a row over its sequence's cache, for generating on CUDA in half precision.

A program has a row and a head. Its keys are dealt out to 32 slots, each with a maximum and sums of
its own: warps need nothing from each other before the end, and the order of sums never depends on
what else is being generated. How many keys are read at once does, and so might the compiler's
choice of which product to add unrounded: here it has none.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from groundup.nn.kernels.cuda_decode.launch import (
    MAX_SOON_BYTES,
    begin,
    options,
    prefetch_pieces,
    wait,
)

_SLOTS = tl.constexpr(32)
# Blocks of keys, one for each slot, that are read at once, for heads of up to 64 and for wider
# ones. A program alone should wait but once; many hide each other's waits, and must not take each
# other's registers.
_BLOCKS_OF_FEW, _BLOCKS_OF_MANY = (8, 4), (2, 1)
_FEW_PROGRAMS = 128


class HeadChanges(NamedTuple):
    """What happens to queries, keys and values before they meet."""

    rotation: tuple[Tensor, Tensor] | None
    """The cosines and sines of `RotaryEmbedding`."""
    gains: tuple[Tensor, Tensor] | None
    """Of the norms of queries and of keys."""
    eps: float
    """Under the norms' roots."""
    num_gates: int
    """Columns behind the projections, of which each head has one for its gate; 0 for no gates."""
    value_factor: Tensor | None
    """Of what is added to the values."""


class _Inputs(NamedTuple):
    """What both kernels read, and where keys and values go; unused tensors are any."""

    packed: Tensor
    key_cache: Tensor
    value_cache: Tensor
    positions: Tensor
    sequences: Tensor
    cos: Tensor
    sin: Tensor
    query_gain: Tensor
    key_gain: Tensor
    ids: Tensor
    table: Tensor
    value_factor: Tensor


def attend(
    packed: Tensor,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
    sequences: Tensor | None,
    changes: HeadChanges,
    mixed: Tensor,
    extra: tuple[Tensor, Tensor] | None = None,
    fetches_ahead: bool = False,
) -> None:
    """Change queries, keys and values, store keys and values, and attend, for each row and head.

    keys, values: one layer's cache (sequences, kv_heads, positions, d_head).
    sequences: the sequence that each row belongs to, many rows to one, so that all are stored
        before any is read; a row of sequence -1, at position 0, is stored nowhere. Without it row i
        is the next token of sequence i.
    mixed: where the result goes.
    extra: the id of each row, and the table of what is added to values.
    fetches_ahead: let the GPU fetch keys and values into its L2 cache while projections are made.
    """
    num_rows = len(mixed)
    _, num_kv_heads, longest, d_head = keys.shape
    num_heads = mixed.shape[1] // d_head
    is_prompt = sequences is not None
    inputs = _Inputs(
        packed,
        keys,
        values,
        positions,
        positions if sequences is None else sequences,
        *(changes.rotation or (mixed, mixed)),
        *(changes.gains or (mixed, mixed)),
        *(extra or (positions, mixed)),
        mixed if changes.value_factor is None else changes.value_factor,
    )
    sizes = {
        "HEADS": num_heads,
        "KV_HEADS": num_kv_heads,
        "D_HEAD": d_head,
        "ROTATE": changes.rotation is not None,
        "NORM": changes.gains is not None,
        "GATES": changes.num_gates,
        "EXTRA": changes.value_factor is not None,
    }
    if is_prompt:
        _store[(num_rows, num_kv_heads)](
            inputs, longest, changes.eps, **sizes, **options(num_warps=1)
        )
    is_few = num_rows * num_heads <= _FEW_PROGRAMS
    _attend[(num_rows, num_heads)](
        inputs,
        mixed,
        longest,
        changes.eps,
        d_head**-0.5,
        fetches_ahead * MAX_SOON_BYTES // (num_rows * num_kv_heads),
        STORED=is_prompt,
        BLOCKS=(_BLOCKS_OF_FEW if is_few else _BLOCKS_OF_MANY)[d_head > 64],
        **sizes,
        **options(num_warps=2 if d_head <= 32 else 4, num_stages=1, enable_fp_fusion=False),
    )


@triton.jit
def _head(
    inputs, head, row, position, gain, eps,
    WIDTH: tl.constexpr, D_HEAD: tl.constexpr, ROTATE: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """One head of a row of `packed` in float32, normalized and rotated by its position."""
    lane = tl.arange(0, triton.next_power_of_2(D_HEAD))
    fits = lane < D_HEAD
    start = inputs.packed + row * WIDTH + head * D_HEAD
    value = tl.load(start + lane, mask=fits, other=0.0).to(tl.float32)
    scale = 1.0
    if NORM:
        scale = tl.rsqrt(tl.sum(value * value, axis=0) / D_HEAD + eps)
        value *= scale * tl.load(gain + lane, mask=fits, other=0.0).to(tl.float32)
    if ROTATE:
        other = tl.load(start + (lane ^ 1), mask=fits, other=0.0).to(tl.float32)
        if NORM:
            other *= scale * tl.load(gain + (lane ^ 1), mask=fits, other=0.0).to(tl.float32)
        offset = position * (D_HEAD // 2) + lane // 2
        cosine = tl.load(inputs.cos + offset, mask=fits, other=0.0)
        sine = tl.load(inputs.sin + offset, mask=fits, other=0.0)
        value = value * cosine + tl.where(lane % 2 == 0, -other, other) * sine
    return value


@triton.jit
def _key_and_value(
    inputs, head, row, position, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D_HEAD: tl.constexpr, ROTATE: tl.constexpr,
    NORM: tl.constexpr, GATES: tl.constexpr, EXTRA: tl.constexpr,
):  # fmt: skip
    """Those of a row and head in float32."""
    width: tl.constexpr = (HEADS + 2 * KV_HEADS) * D_HEAD + GATES
    key = _head(
        inputs, HEADS + head, row, position, inputs.key_gain, eps, width, D_HEAD, ROTATE, NORM
    )
    lane = tl.arange(0, triton.next_power_of_2(D_HEAD))
    fits = lane < D_HEAD
    start = inputs.packed + row * width + (HEADS + KV_HEADS + head) * D_HEAD
    value = tl.load(start + lane, mask=fits, other=0.0).to(tl.float32)
    if EXTRA:
        id = tl.load(inputs.ids + row).to(tl.int64)
        entry = inputs.table + (id * KV_HEADS + head) * D_HEAD + lane
        added = tl.load(entry, mask=fits, other=0.0).to(tl.float32)
        value += tl.load(inputs.value_factor).to(tl.float32) * added
    return key, value


@triton.jit
def _store(
    inputs, longest, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D_HEAD: tl.constexpr, ROTATE: tl.constexpr,
    NORM: tl.constexpr, GATES: tl.constexpr, EXTRA: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait(EARLY)
    begin(EARLY)
    row = tl.program_id(0)
    head = tl.program_id(1)
    position = tl.load(inputs.positions + row).to(tl.int32)
    sequence = tl.load(inputs.sequences + row).to(tl.int64)
    key, value = _key_and_value(
        inputs, head, row, position, eps,
        HEADS, KV_HEADS, D_HEAD, ROTATE, NORM, GATES, EXTRA,
    )  # fmt: skip
    lane = tl.arange(0, triton.next_power_of_2(D_HEAD))
    offset = ((sequence * KV_HEADS + head) * longest + position) * D_HEAD + lane
    inside = (lane < D_HEAD) & (sequence >= 0)
    tl.store(inputs.key_cache + offset, key.to(inputs.key_cache.dtype.element_ty), mask=inside)
    tl.store(inputs.value_cache + offset, value.to(inputs.key_cache.dtype.element_ty), mask=inside)


@triton.jit
def _cached(cache, start, first, end, D_HEAD: tl.constexpr, BLOCKS: tl.constexpr):
    """Blocks of a sequence's keys or values, from position `first` on and before `end`."""
    lane = tl.arange(0, triton.next_power_of_2(D_HEAD))
    tiles = ()
    for block in tl.static_range(BLOCKS):
        index = first + block * _SLOTS + tl.arange(0, _SLOTS)
        known = (index < end)[:, None] & (lane < D_HEAD)[None, :]
        offset = index[:, None] * D_HEAD + lane[None, :]
        tile = tl.load(cache + start + offset, mask=known, other=0.0)
        tiles = tiles + (tile,)  # type: ignore[assignment]  # noqa: RUF005
    return tiles


@triton.jit
def _prefetch_rest(
    inputs, start, first, end, longest, most_bytes, D_HEAD: tl.constexpr, EARLY: tl.constexpr
):
    """Let the keys and values from `first` on be on their way to the cache, up to 1,024 bytes more
    than that and no more than `most_bytes`."""
    each: tl.constexpr = D_HEAD * 2
    if each % 16 == 0:
        num_bytes = tl.minimum((longest - first) * each, (end - first) * each + 1023)
        num_bytes = tl.minimum(num_bytes, most_bytes)
        rest = start + first * D_HEAD
        piece = tl.arange(0, 128)
        prefetch_pieces(inputs.key_cache + rest, piece, num_bytes, EARLY)
        prefetch_pieces(inputs.value_cache + rest, piece, num_bytes, EARLY)


@triton.jit
def _add_keys(query, key_tiles, value_tiles, first, end, top, total, sums, BLOCKS: tl.constexpr):
    """Add blocks to each slot's maximum, its sum of weights and its sum of values."""
    for block in tl.static_range(BLOCKS):
        if first + block * _SLOTS < end:
            scores = tl.sum(key_tiles[block].to(tl.float32) * query[None, :], axis=1)
            index = first + block * _SLOTS + tl.arange(0, _SLOTS)
            scores = tl.where(index < end, scores, float("-inf"))
            new_top = tl.maximum(top, scores)
            weight = tl.exp(scores - new_top)
            shrink = tl.exp(top - new_top)
            value = value_tiles[block].to(tl.float32)
            sums = tl.fma(weight[:, None], value, sums * shrink[:, None])
            total = tl.fma(total, shrink, weight)
            top = new_top
    return top, total, sums


@triton.jit
def _attend(
    inputs, mixed, longest, eps, scale, most_bytes,
    STORED: tl.constexpr, BLOCKS: tl.constexpr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D_HEAD: tl.constexpr, ROTATE: tl.constexpr,
    NORM: tl.constexpr, GATES: tl.constexpr, EXTRA: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """softmax(q Kᵀ · scale) V over the sequence so far, by running maxima and sums."""
    if STORED:
        wait(EARLY)
        begin(EARLY)
    row = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    width: tl.constexpr = (HEADS + 2 * KV_HEADS) * D_HEAD + GATES
    lanes: tl.constexpr = triton.next_power_of_2(D_HEAD)
    span: tl.constexpr = _SLOTS * BLOCKS
    position = tl.load(inputs.positions + row).to(tl.int32)
    sequence = row.to(tl.int64)
    if STORED:
        sequence = tl.load(inputs.sequences + row).to(tl.int64)
    lane = tl.arange(0, lanes)
    fits = lane < D_HEAD
    start = (sequence * KV_HEADS + kv_head) * longest * D_HEAD
    # What earlier steps stored no launch of this one changes, nor the positions before the last.
    end = tl.minimum(position, longest)
    key_tiles = _cached(inputs.key_cache, start, 0, end, D_HEAD, BLOCKS)
    value_tiles = _cached(inputs.value_cache, start, 0, end, D_HEAD, BLOCKS)
    if not STORED:
        _prefetch_rest(inputs, start, span, end, longest, most_bytes, D_HEAD, EARLY)
        wait(EARLY)
        begin(EARLY)

    query = scale * _head(
        inputs, head, row, position, inputs.query_gain, eps, width, D_HEAD, ROTATE, NORM
    )
    # The new token comes from what was just computed, the earlier ones from the cache.
    key, value = _key_and_value(
        inputs, kv_head, row, position, eps,
        HEADS, KV_HEADS, D_HEAD, ROTATE, NORM, GATES, EXTRA,
    )  # fmt: skip
    key = key.to(inputs.key_cache.dtype.element_ty)
    if not STORED:
        # All heads of a group store the same.
        own = start + position * D_HEAD + lane
        inside = fits & (position < longest)
        tl.store(inputs.key_cache + own, key, mask=inside)
        tl.store(inputs.value_cache + own, value.to(inputs.key_cache.dtype.element_ty), mask=inside)
    # A slot without keys has a maximum below all others, but finite: no score minus no score.
    top = tl.full((_SLOTS,), -1e30, tl.float32)
    total = tl.zeros((_SLOTS,), dtype=tl.float32)
    sums = tl.zeros((_SLOTS, lanes), dtype=tl.float32)
    top, total, sums = _add_keys(query, key_tiles, value_tiles, 0, end, top, total, sums, BLOCKS)
    for first in range(span, end, span):
        key_tiles = _cached(inputs.key_cache, start, first, end, D_HEAD, BLOCKS)
        value_tiles = _cached(inputs.value_cache, start, first, end, D_HEAD, BLOCKS)
        top, total, sums = _add_keys(
            query, key_tiles, value_tiles, first, end, top, total, sums, BLOCKS
        )
    own_score = tl.sum(query * key.to(tl.float32), axis=0)
    highest = tl.maximum(own_score, tl.max(top, axis=0))
    shrink = tl.exp(top - highest)
    own_weight = tl.exp(own_score - highest)
    whole = own_weight + tl.sum(total * shrink, axis=0)
    mix = own_weight * value + tl.sum(sums * shrink[:, None], axis=0)
    if GATES:
        gate = tl.load(inputs.packed + row * width + width - GATES + head).to(tl.float32)
        whole *= 0.5 * (1.0 + tl.exp(-gate))
    out = mixed + row * HEADS * D_HEAD + head * D_HEAD + lane
    tl.store(out, (mix / whole).to(mixed.dtype.element_ty), mask=fits)
