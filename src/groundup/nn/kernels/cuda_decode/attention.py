"""Attention of one token a row over its sequence's cache, for generating on CUDA in half precision.

A row's sums run over the keys in blocks of one size from the first on, so they never depend on
what else is being generated.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


def attend(
    packed: Tensor,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
    sequences: Tensor | None,
    tables: tuple[Tensor, Tensor] | None,
    mixed: Tensor,
) -> None:
    """Rotate queries and keys, store keys and values, and attend, for each row and head.

    keys, values: one layer's cache (sequences, kv_heads, positions, d_head).
    sequences: the sequence that each row belongs to, many rows to one, so that all are stored
        before any is read; without it row i is the next token of sequence i.
    tables: the cosines and sines of `RotaryEmbedding`; None for no rotation.
    mixed: where the result goes.
    """
    num_rows = len(mixed)
    _, num_kv_heads, longest, d_head = keys.shape
    num_heads = mixed.shape[1] // d_head
    cos, sin = (mixed, mixed) if tables is None else tables
    sizes = {
        "HEADS": num_heads,
        "KV_HEADS": num_kv_heads,
        "D_HEAD": d_head,
        "LANES": triton.next_power_of_2(d_head),
        "ROTATE": tables is not None,
    }
    if sequences is not None:
        _store[(num_rows, num_kv_heads)](
            packed,
            keys,
            values,
            positions,
            sequences,
            cos,
            sin,
            positions.stride(0),
            longest,
            **sizes,
            num_warps=1,
        )
    _attend[(num_rows, num_heads)](
        packed,
        keys,
        values,
        positions,
        sequences if sequences is not None else positions,
        cos,
        sin,
        mixed,
        positions.stride(0),
        longest,
        d_head**-0.5,
        **sizes,
        STORED=sequences is not None,
        # Keys looked at together, part of the order of sums as well; measured for both sizes.
        BLOCK=128 if d_head <= 32 else 256,
        num_warps=2 if d_head <= 32 else 4,
        num_stages=1,
    )


@triton.jit
def _head(
    packed,
    head,
    row,
    position,
    cos,
    sin,
    WIDTH: tl.constexpr,
    D_HEAD: tl.constexpr,
    LANES: tl.constexpr,
    ROTATE: tl.constexpr,
):
    """One head of a row of `packed` in float32, rotated by its position."""
    lane = tl.arange(0, LANES)
    fits = lane < D_HEAD
    start = packed + row * WIDTH + head * D_HEAD
    value = tl.load(start + lane, mask=fits, other=0.0).to(tl.float32)
    if ROTATE:
        other = tl.load(start + (lane ^ 1), mask=fits, other=0.0).to(tl.float32)
        offset = position * (D_HEAD // 2) + lane // 2
        cosine = tl.load(cos + offset, mask=fits, other=0.0)
        sine = tl.load(sin + offset, mask=fits, other=0.0)
        value = value * cosine + tl.where(lane % 2 == 0, -other, other) * sine
    return value


@triton.jit
def _store(
    packed,
    keys,
    values,
    positions,
    sequences,
    cos,
    sin,
    stride,
    longest,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D_HEAD: tl.constexpr,
    LANES: tl.constexpr,
    ROTATE: tl.constexpr,
):
    row = tl.program_id(0)
    head = tl.program_id(1)
    width: tl.constexpr = (HEADS + 2 * KV_HEADS) * D_HEAD
    position = tl.load(positions + row * stride).to(tl.int32)
    sequence = tl.load(sequences + row).to(tl.int64)
    key = _head(packed, HEADS + head, row, position, cos, sin, width, D_HEAD, LANES, ROTATE)
    value = _head(
        packed, HEADS + KV_HEADS + head, row, position, cos, sin, width, D_HEAD, LANES, False
    )
    lane = tl.arange(0, LANES)
    offset = ((sequence * KV_HEADS + head) * longest + position) * D_HEAD + lane
    tl.store(keys + offset, key.to(keys.dtype.element_ty), mask=lane < D_HEAD)
    tl.store(values + offset, value.to(values.dtype.element_ty), mask=lane < D_HEAD)


@triton.jit
def _attend(
    packed,
    keys,
    values,
    positions,
    sequences,
    cos,
    sin,
    mixed,
    stride,
    longest,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D_HEAD: tl.constexpr,
    LANES: tl.constexpr,
    ROTATE: tl.constexpr,
    STORED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """softmax(q Kᵀ · scale) V over the sequence so far, by running maximum and sum."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    width: tl.constexpr = (HEADS + 2 * KV_HEADS) * D_HEAD
    position = tl.load(positions + row * stride).to(tl.int32)
    sequence = row.to(tl.int64)
    if STORED:
        sequence = tl.load(sequences + row).to(tl.int64)
    lane = tl.arange(0, LANES)
    fits = lane < D_HEAD
    start = (sequence * KV_HEADS + kv_head) * longest * D_HEAD

    query = _head(packed, head, row, position, cos, sin, width, D_HEAD, LANES, ROTATE) * scale
    # The new token comes first, from what was just computed, the earlier ones from the cache.
    key = _head(packed, HEADS + kv_head, row, position, cos, sin, width, D_HEAD, LANES, ROTATE)
    value = _head(
        packed, HEADS + KV_HEADS + kv_head, row, position, cos, sin, width, D_HEAD, LANES, False
    )
    key = key.to(keys.dtype.element_ty)
    if not STORED:
        # All heads of a group store the same.
        own = start + position * D_HEAD + lane
        inside = fits & (position < longest)
        tl.store(keys + own, key, mask=inside)
        tl.store(values + own, value.to(values.dtype.element_ty), mask=inside)
    top = tl.sum(query * key.to(tl.float32), axis=0)
    total = 1.0
    sums = value
    for first in range(0, tl.minimum(position, longest), BLOCK):
        index = first + tl.arange(0, BLOCK)
        is_before = index < position
        offset = start + index[:, None] * D_HEAD + lane[None, :]
        known = is_before[:, None] & fits[None, :]
        tile = tl.load(keys + offset, mask=known, other=0.0).to(tl.float32)
        scores = tl.sum(tile * query[None, :], axis=1)
        scores = tl.where(is_before, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        weights = tl.exp(scores - new_top)
        shrink = tl.exp(top - new_top)
        tile = tl.load(values + offset, mask=known, other=0.0).to(tl.float32)
        sums = sums * shrink + tl.sum(weights[:, None] * tile, axis=0)
        total = total * shrink + tl.sum(weights, axis=0)
        top = new_top
    out = mixed + row * HEADS * D_HEAD + head * D_HEAD + lane
    tl.store(out, (sums / total).to(mixed.dtype.element_ty), mask=fits)
