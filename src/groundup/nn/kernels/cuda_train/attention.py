"""Causal attention: the way there for short sequences, the way back for longer ones too.

There, a program has a head: it rotates all of its queries and keys, if they are to be rotated, and
then lets tile after tile of queries see tiles of keys. Back, programs have a tile of queries or one
of keys each. The weights are computed twice for that, but every gradient is added up by one
program, so that it is the same every time, and many programs fit on a multiprocessor. `nn.limits`
says which sequences go through here.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from groundup.nn.kernels.cuda_train.projections import rotated

_LOG2_E = 1.0 / math.log(2.0)
_LN_2 = tl.constexpr(math.log(2.0))

# Tiles are squares of so many rows, one for each 16 of which a warp is there.
_TILE = 64
_TILES: dict[str, Any] = {"TILE": _TILE, "num_warps": _TILE // 16}
# Loads in flight, and registers where fewer let more programs run; the fastest tried on an H200. On
# the way back for heads of up to 32 values, and for those of 64.
_THERE = {"num_stages": 3}
_OF_QUERIES = ({"num_stages": 3}, {"num_stages": 2, "maxnreg": 128})
_OF_KEYS = ({"num_stages": 1, "maxnreg": 128}, {"num_stages": 1, "maxnreg": 168})


def short_attention(
    packed: Tensor, num_heads: int, rotation: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Mixed values (batch, seq, d_model), the logsumexp of each row's scores (batch, heads, seq),
    and, if there is a rotation, what takes the place of `packed` on the way back: queries and keys
    rotated, and values (batch, seq, 3, heads, d_head).

    packed: queries, keys and values side by side, (batch, seq, 3 · d_model).
    """
    batch, seq, width = packed.shape
    d_head = width // 3 // num_heads
    out = packed.new_empty(batch, seq, width // 3)
    logsumexp = packed.new_empty(batch, num_heads, seq, dtype=torch.float32)
    heads = packed.new_empty((batch, seq, 3, num_heads, d_head) if rotation else 0)
    _forward[(batch * num_heads,)](
        packed,
        *(rotation or (packed, packed)),
        heads,
        out,
        logsumexp,
        seq,
        num_heads,
        _LOG2_E / math.sqrt(d_head),
        ROTATES=rotation is not None,
        D_HEAD=d_head,
        **_THERE,
        **_TILES,
    )
    return out, logsumexp, heads


def attention_backward(
    d_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    rotation: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """The gradients of queries, keys and values side by side, (batch, seq, 3 · d_model); of those
    before the rotation, if there is one.

    d_out, out: (batch, seq, d_model), contiguous.
    query, key, value: (batch, heads, seq, d_head), rotated if there is a rotation, heads next to
        each other and nothing between sequences; queries lie as keys do.
    """
    batch, num_heads, seq, d_head = query.shape
    d_packed = out.new_empty(batch, seq, 3 * num_heads * d_head)
    sums = out.new_empty(batch, num_heads, seq, dtype=torch.float32)
    common = (
        query,
        key,
        value,
        d_out,
        logsumexp.contiguous(),
        sums,
        d_packed,
        *(rotation or (out, out)),
        query.stride(2),
        value.stride(2),
        seq,
        num_heads,
        1.0 / math.sqrt(d_head),
    )
    sizes = {"ROTATES": rotation is not None, "D_HEAD": d_head, **_TILES}
    # One dimension for tile and head: the others of a grid end at 65,535.
    grid = (triton.cdiv(seq, _TILE) * batch * num_heads,)
    _query_gradient[grid](out, *common, **sizes, **_OF_QUERIES[d_head > 32])
    _key_gradient[grid](*common, **sizes, **_OF_KEYS[d_head > 32])
    return d_packed


@triton.jit
def _load(base, rows, seq, stride, D_HEAD: tl.constexpr):
    pointer = base + rows[:, None] * stride + tl.arange(0, D_HEAD)[None, :]
    return tl.load(pointer, mask=rows[:, None] < seq, other=0.0)


@triton.jit
def _store(base, x, rows, seq, stride, D_HEAD: tl.constexpr):
    pointer = base + rows[:, None] * stride + tl.arange(0, D_HEAD)[None, :]
    tl.store(pointer, x, mask=rows[:, None] < seq)


@triton.jit
def _angles(table, rows, seq, D_HEAD: tl.constexpr):
    offset = rows[:, None] * (D_HEAD // 2) + tl.arange(0, D_HEAD // 2)[None, :]
    return tl.load(table + offset, mask=rows[:, None] < seq, other=0.0)


@triton.jit
def _store_rotated_back(
    base, x, rows, seq, stride, cos, sin,
    ROTATES: tl.constexpr, TILE: tl.constexpr, D_HEAD: tl.constexpr,
):  # fmt: skip
    if ROTATES:
        c = _angles(cos, rows, seq, D_HEAD)
        s = _angles(sin, rows, seq, D_HEAD)
        x = rotated(x, c, -s, TILE, D_HEAD)
    _store(base, x, rows, seq, stride, D_HEAD)


@triton.jit
def _forward(
    packed, cos, sin, heads, out, logsumexp, seq, num_heads, scale_log2,
    ROTATES: tl.constexpr, D_HEAD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64)
    batch, head = index // num_heads, index % num_heads
    d_model = num_heads * D_HEAD
    stride = 3 * d_model
    queries = packed + batch * seq * stride + head * D_HEAD
    mixed_values = out + batch * seq * d_model + head * D_HEAD
    if ROTATES:
        prepared = heads + batch * seq * stride + head * D_HEAD
        for begin in range(0, seq, TILE):
            rows = begin + tl.arange(0, TILE)
            c = _angles(cos, rows, seq, D_HEAD)
            s = _angles(sin, rows, seq, D_HEAD)
            for part in tl.static_range(3):
                x = _load(queries + part * d_model, rows, seq, stride, D_HEAD)
                if part < 2:
                    x = rotated(x.to(tl.float32), c, s, TILE, D_HEAD)
                _store(prepared + part * d_model, x, rows, seq, stride, D_HEAD)
        # What one thread has written others read.
        tl.debug_barrier()
        queries = prepared
    # One loop over all pairs of tiles that see each other: one for each tile of queries would begin
    # by waiting for its first loads.
    num_tiles = tl.cdiv(seq, TILE)
    i, j = 0, 0
    top = tl.full([TILE], -float("inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    mixed = tl.zeros([TILE, D_HEAD], tl.float32)
    for _ in range(num_tiles * (num_tiles + 1) // 2):
        rows, columns = i * TILE + tl.arange(0, TILE), j * TILE + tl.arange(0, TILE)
        query = _load(queries, rows, seq, stride, D_HEAD)
        key = _load(queries + d_model, columns, seq, stride, D_HEAD)
        value = _load(queries + 2 * d_model, columns, seq, stride, D_HEAD)
        scores = tl.dot(query, tl.trans(key))
        scores = tl.where(rows[:, None] >= columns[None, :], scores, -float("inf"))
        # With this, what was added up for the tile before fades to nothing.
        top = tl.where(j == 0, -float("inf"), top)
        higher = tl.maximum(top, tl.max(scores, 1) * scale_log2)
        weights = tl.exp2(scores * scale_log2 - higher[:, None])
        fade = tl.exp2(top - higher)
        total = total * fade + tl.sum(weights, 1)
        mixed = tl.dot(weights.to(value.dtype), value, mixed * fade[:, None])
        top = higher
        is_last = j == i
        if is_last:
            _store(mixed_values, mixed / total[:, None], rows, seq, d_model, D_HEAD)
            row_logs = (top + tl.log2(total)) * _LN_2
            tl.store(logsumexp + index * seq + rows, row_logs, mask=rows < seq)
        i, j = tl.where(is_last, i + 1, i), tl.where(is_last, 0, j + 1)


@triton.jit
def _place(seq, num_heads, TILE: tl.constexpr):
    """Where this program's tile begins, its head among all, its sequence, and its head there."""
    num_tiles = tl.cdiv(seq, TILE)
    index = tl.program_id(0) // num_tiles
    first = tl.program_id(0) % num_tiles * TILE
    return first, index.to(tl.int64), (index // num_heads).to(tl.int64), index % num_heads


@triton.jit
def _row_logs(logsumexp, rows, seq):
    """In base 2. Rows beyond the sequence have no weights at all."""
    log = tl.load(logsumexp + rows, mask=rows < seq, other=float("inf"))
    return log / _LN_2


@triton.jit
def _add_query_gradient(
    d_query, query, d_mixed, sums, log, rows, key, value, columns, scale_log2,
    MASKS: tl.constexpr,
):  # fmt: skip
    """What a tile of queries gets from one of keys."""
    scores = tl.dot(query, tl.trans(key))
    d_weights = tl.dot(d_mixed, tl.trans(value))
    weights = tl.exp2(scores * scale_log2 - log[:, None])
    if MASKS:
        weights = tl.where(rows[:, None] >= columns[None, :], weights, 0.0)
    d_scores = weights * (d_weights - sums[:, None])
    return tl.dot(d_scores.to(key.dtype), key, d_query)


@triton.jit
def _query_gradient(
    out, query, key, value, d_out, logsumexp, sums, d_packed, cos, sin,
    head_stride, value_stride, seq, num_heads, scale,
    ROTATES: tl.constexpr, D_HEAD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of queries; leaves each row's Σ out · d_out for `_key_gradient`."""
    first, index, batch, head = _place(seq, num_heads, TILE)
    d_model = num_heads * D_HEAD
    scale_log2 = scale / _LN_2
    keys = key + batch * seq * head_stride + head * D_HEAD
    values = value + batch * seq * value_stride + head * D_HEAD
    mixed_offset = batch * seq * d_model + head * D_HEAD
    rows = first + tl.arange(0, TILE)
    queries = query + batch * seq * head_stride + head * D_HEAD
    query_tile = _load(queries, rows, seq, head_stride, D_HEAD)
    d_mixed = _load(d_out + mixed_offset, rows, seq, d_model, D_HEAD)
    mixed = _load(out + mixed_offset, rows, seq, d_model, D_HEAD)
    row_sums = tl.sum(mixed.to(tl.float32) * d_mixed.to(tl.float32), 1)
    tl.store(sums + index * seq + rows, row_sums, mask=rows < seq)
    log = _row_logs(logsumexp + index * seq, rows, seq)
    d_query = tl.zeros([TILE, D_HEAD], tl.float32)
    for begin in range(0, first, TILE):
        columns = begin + tl.arange(0, TILE)
        key_tile = _load(keys, columns, seq, head_stride, D_HEAD)
        value_tile = _load(values, columns, seq, value_stride, D_HEAD)
        d_query = _add_query_gradient(
            d_query, query_tile, d_mixed, row_sums, log, rows, key_tile, value_tile, columns,
            scale_log2, False,
        )  # fmt: skip
    key_tile = _load(keys, rows, seq, head_stride, D_HEAD)
    value_tile = _load(values, rows, seq, value_stride, D_HEAD)
    d_query = _add_query_gradient(
        d_query, query_tile, d_mixed, row_sums, log, rows, key_tile, value_tile, rows,
        scale_log2, True,
    )  # fmt: skip
    d_queries = d_packed + batch * seq * 3 * d_model + head * D_HEAD
    _store_rotated_back(
        d_queries, d_query * scale, rows, seq, 3 * d_model, cos, sin, ROTATES, TILE, D_HEAD
    )


@triton.jit
def _add_key_gradient(
    d_key, d_value, key, value, columns, queries, d_mixed_values, logsumexp, sums, begin,
    seq, head_stride, d_model, scale_log2,
    MASKS: tl.constexpr, TILE: tl.constexpr, D_HEAD: tl.constexpr,
):  # fmt: skip
    """What a tile of keys and their values get from one of queries. Columns by rows, as the last
    two matmuls want it."""
    rows = begin + tl.arange(0, TILE)
    query = _load(queries, rows, seq, head_stride, D_HEAD)
    d_mixed = _load(d_mixed_values, rows, seq, d_model, D_HEAD)
    log = _row_logs(logsumexp, rows, seq)
    row_sums = tl.load(sums + rows, mask=rows < seq, other=0.0)
    scores = tl.dot(key, tl.trans(query))
    d_weights = tl.dot(value, tl.trans(d_mixed))
    weights = tl.exp2(scores * scale_log2 - log[None, :])
    if MASKS:
        weights = tl.where(rows[None, :] >= columns[:, None], weights, 0.0)
    d_value = tl.dot(weights.to(value.dtype), d_mixed, d_value)
    d_scores = weights * (d_weights - row_sums[None, :])
    return tl.dot(d_scores.to(key.dtype), query, d_key), d_value


@triton.jit
def _key_gradient(
    query, key, value, d_out, logsumexp, sums, d_packed, cos, sin,
    head_stride, value_stride, seq, num_heads, scale,
    ROTATES: tl.constexpr, D_HEAD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of keys and of their values."""
    first, index, batch, head = _place(seq, num_heads, TILE)
    d_model = num_heads * D_HEAD
    scale_log2 = scale / _LN_2
    queries = query + batch * seq * head_stride + head * D_HEAD
    keys = key + batch * seq * head_stride + head * D_HEAD
    values = value + batch * seq * value_stride + head * D_HEAD
    d_mixed_values = d_out + batch * seq * d_model + head * D_HEAD
    logsumexp += index * seq
    sums += index * seq
    columns = first + tl.arange(0, TILE)
    key_tile = _load(keys, columns, seq, head_stride, D_HEAD)
    value_tile = _load(values, columns, seq, value_stride, D_HEAD)
    d_key, d_value = _add_key_gradient(
        tl.zeros([TILE, D_HEAD], tl.float32), tl.zeros([TILE, D_HEAD], tl.float32),
        key_tile, value_tile, columns, queries, d_mixed_values, logsumexp, sums, first,
        seq, head_stride, d_model, scale_log2, True, TILE, D_HEAD,
    )  # fmt: skip
    for begin in range(first + TILE, seq, TILE):
        d_key, d_value = _add_key_gradient(
            d_key, d_value,
            key_tile, value_tile, columns, queries, d_mixed_values, logsumexp, sums, begin,
            seq, head_stride, d_model, scale_log2, False, TILE, D_HEAD,
        )  # fmt: skip
    d_keys = d_packed + batch * seq * 3 * d_model + d_model + head * D_HEAD
    _store_rotated_back(
        d_keys, d_key * scale, columns, seq, 3 * d_model, cos, sin, ROTATES, TILE, D_HEAD
    )
    _store(d_keys + d_model, d_value, columns, seq, 3 * d_model, D_HEAD)
