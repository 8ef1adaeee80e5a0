"""Causal attention for short sequences with rotation, packed projections to packed gradients.

One program holds all of a head's queries on the way back, so that every value is read once, nothing
is added by several programs, and the result is the same every time. `nn.limits` says what is short.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from groundup.nn.kernels.cuda_train.projections import rotated

_LOG2_E = 1.0 / math.log(2.0)

# Rows and columns of a tile, warps, and loads in flight: the fastest tried on an H200 at S1.
FORWARD_TILE = (64, 64, 4, 3)
BACKWARD_TILE = (128, 64, 4, 3)


def short_attention(
    packed: Tensor, cos: Tensor | None, sin: Tensor | None, num_heads: int
) -> tuple[Tensor, Tensor]:
    """Mixed values (batch, seq, d_model) and each row's logsumexp, in base 2."""
    batch, seq, width = packed.shape
    d_head = width // 3 // num_heads
    out = packed.new_empty(batch, seq, width // 3)
    logsumexp = packed.new_empty(batch, num_heads, seq, dtype=torch.float32)
    rows, columns, warps, stages = FORWARD_TILE
    # One head_index for tile and head: a grid's other dimensions end at 65,535.
    _forward[(triton.cdiv(seq, rows) * batch * num_heads,)](
        packed,
        packed if cos is None else cos,
        packed if sin is None else sin,
        out,
        logsumexp,
        seq,
        num_heads,
        _LOG2_E / math.sqrt(d_head),
        ROTATE=cos is not None,
        D_HEAD=d_head,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=warps,
        num_stages=stages,
    )
    return out, logsumexp


def short_attention_backward(
    d_out: Tensor,
    packed: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    num_heads: int,
) -> Tensor:
    """The gradient of the packed projections."""
    batch, seq, width = packed.shape
    d_head = width // 3 // num_heads
    d_packed = torch.empty_like(packed)
    half, columns, warps, stages = BACKWARD_TILE
    _backward[(batch * num_heads,)](
        packed,
        packed if cos is None else cos,
        packed if sin is None else sin,
        out,
        d_out.contiguous(),
        logsumexp,
        d_packed,
        seq,
        num_heads,
        1.0 / math.sqrt(d_head),
        _LOG2_E / math.sqrt(d_head),
        ROTATE=cos is not None,
        D_HEAD=d_head,
        HALF=half,
        COLUMNS=columns,
        num_warps=warps,
        num_stages=stages,
    )
    return d_packed


@triton.jit
def _load(base, rows, seq, row_stride, D_HEAD: tl.constexpr):
    pointer = base + rows[:, None] * row_stride + tl.arange(0, D_HEAD)[None, :]
    return tl.load(pointer, mask=rows[:, None] < seq, other=0.0)


@triton.jit
def _load_rotated(
    base,
    rows,
    seq,
    row_stride,
    cos,
    sin,
    ROTATE: tl.constexpr,
    ROWS: tl.constexpr,
    D_HEAD: tl.constexpr,
):
    x = _load(base, rows, seq, row_stride, D_HEAD)
    if ROTATE:
        angle = rows[:, None] * (D_HEAD // 2) + tl.arange(0, D_HEAD // 2)[None, :]
        inside = rows[:, None] < seq
        c = tl.load(cos + angle, mask=inside, other=0.0)
        s = tl.load(sin + angle, mask=inside, other=0.0)
        x = rotated(x.to(tl.float32), c, s, ROWS, D_HEAD).to(x.dtype)
    return x


@triton.jit
def _store_unrotated(
    base,
    x,
    rows,
    seq,
    row_stride,
    cos,
    sin,
    ROTATE: tl.constexpr,
    ROWS: tl.constexpr,
    D_HEAD: tl.constexpr,
):
    inside = rows[:, None] < seq
    if ROTATE:
        angle = rows[:, None] * (D_HEAD // 2) + tl.arange(0, D_HEAD // 2)[None, :]
        c = tl.load(cos + angle, mask=inside, other=0.0)
        s = tl.load(sin + angle, mask=inside, other=0.0)
        x = rotated(x, c, -s, ROWS, D_HEAD)
    pointer = base + rows[:, None] * row_stride + tl.arange(0, D_HEAD)[None, :]
    tl.store(pointer, x, mask=inside)


@triton.jit
def _forward(
    packed,
    cos,
    sin,
    out,
    logsumexp,
    seq,
    num_heads,
    scale_log2,
    ROTATE: tl.constexpr,
    D_HEAD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    num_tiles = tl.cdiv(seq, ROWS)
    first = tl.program_id(0) % num_tiles * ROWS
    head_index = tl.program_id(0) // num_tiles
    batch, head = (head_index // num_heads).to(tl.int64), head_index % num_heads
    d_model = num_heads * D_HEAD
    stride = 3 * d_model
    base = packed + batch * seq * stride + head * D_HEAD
    rows = first + tl.arange(0, ROWS)
    query = _load_rotated(base, rows, seq, stride, cos, sin, ROTATE, ROWS, D_HEAD)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, D_HEAD], tl.float32)
    for begin in range(0, tl.minimum(first + ROWS, seq), COLUMNS):
        columns = begin + tl.arange(0, COLUMNS)
        key = _load_rotated(base + d_model, columns, seq, stride, cos, sin, ROTATE, COLUMNS, D_HEAD)
        value = _load(base + 2 * d_model, columns, seq, stride, D_HEAD)
        scores = tl.dot(query, tl.trans(key)) * scale_log2
        scores = tl.where(rows[:, None] >= columns[None, :], scores, -float("inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(top - higher)
        total = total * fade + tl.sum(weights, 1)
        mixed = mixed * fade[:, None] + tl.dot(weights.to(value.dtype), value)
        top = higher
    mixed = mixed / total[:, None]
    inside = rows < seq
    pointer = out + (batch * seq + rows[:, None]) * d_model + head * D_HEAD
    tl.store(pointer + tl.arange(0, D_HEAD)[None, :], mixed, mask=inside[:, None])
    tl.store(logsumexp + head_index.to(tl.int64) * seq + rows, top + tl.log2(total), mask=inside)


@triton.jit
def _look_back(query, d_mixed, delta, logsumexp, rows, key, value, columns, scale_log2):
    """What some rows (queries) say about a block of columns (keys): weights and their gradient.

    Kept rows by columns: transposed, as two of the three matmuls want it, was a third slower.
    """
    scores = tl.dot(query, tl.trans(key)) * scale_log2
    weights = tl.exp2(scores - logsumexp[:, None])
    weights = tl.where(rows[:, None] >= columns[None, :], weights, 0.0)
    d_weights = tl.dot(d_mixed, tl.trans(value))
    d_scores = weights * (d_weights - delta[:, None])
    return weights.to(query.dtype), d_scores.to(query.dtype)


@triton.jit
def _rows_of_backward(
    base,
    out_base,
    d_out_base,
    log_base,
    rows,
    seq,
    stride,
    d_model,
    cos,
    sin,
    ROTATE: tl.constexpr,
    HALF: tl.constexpr,
    D_HEAD: tl.constexpr,
):
    query = _load_rotated(base, rows, seq, stride, cos, sin, ROTATE, HALF, D_HEAD)
    d_mixed = _load(d_out_base, rows, seq, d_model, D_HEAD)
    mixed = _load(out_base, rows, seq, d_model, D_HEAD)
    delta = tl.sum(mixed.to(tl.float32) * d_mixed.to(tl.float32), 1)
    # Rows beyond the sequence get no weight at all.
    logsumexp = tl.load(log_base + rows, mask=rows < seq, other=float("inf"))
    return query, d_mixed, delta, logsumexp


@triton.jit
def _backward(
    packed,
    cos,
    sin,
    out,
    d_out,
    logsumexp,
    d_packed,
    seq,
    num_heads,
    scale,
    scale_log2,
    ROTATE: tl.constexpr,
    D_HEAD: tl.constexpr,
    HALF: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    head_index = tl.program_id(0)
    batch, head = (head_index // num_heads).to(tl.int64), head_index % num_heads
    d_model = num_heads * D_HEAD
    stride = 3 * d_model
    offset = batch * seq * stride + head * D_HEAD
    base, d_base = packed + offset, d_packed + offset
    out_base = out + batch * seq * d_model + head * D_HEAD
    d_out_base = d_out + batch * seq * d_model + head * D_HEAD
    log_base = logsumexp + head_index.to(tl.int64) * seq
    low, high = tl.arange(0, HALF), HALF + tl.arange(0, HALF)
    query_0, d_mixed_0, delta_0, log_0 = _rows_of_backward(
        base,
        out_base,
        d_out_base,
        log_base,
        low,
        seq,
        stride,
        d_model,
        cos,
        sin,
        ROTATE,
        HALF,
        D_HEAD,
    )
    query_1, d_mixed_1, delta_1, log_1 = _rows_of_backward(
        base,
        out_base,
        d_out_base,
        log_base,
        high,
        seq,
        stride,
        d_model,
        cos,
        sin,
        ROTATE,
        HALF,
        D_HEAD,
    )
    d_query_0 = tl.zeros([HALF, D_HEAD], tl.float32)
    d_query_1 = tl.zeros([HALF, D_HEAD], tl.float32)
    for begin in range(0, tl.minimum(HALF, seq), COLUMNS):
        columns = begin + tl.arange(0, COLUMNS)
        key = _load_rotated(base + d_model, columns, seq, stride, cos, sin, ROTATE, COLUMNS, D_HEAD)
        value = _load(base + 2 * d_model, columns, seq, stride, D_HEAD)
        weights, d_scores = _look_back(
            query_0, d_mixed_0, delta_0, log_0, low, key, value, columns, scale_log2
        )
        d_value = tl.dot(tl.trans(weights), d_mixed_0)
        d_key = tl.dot(tl.trans(d_scores), query_0)
        d_query_0 += tl.dot(d_scores, key)
        weights, d_scores = _look_back(
            query_1, d_mixed_1, delta_1, log_1, high, key, value, columns, scale_log2
        )
        d_value += tl.dot(tl.trans(weights), d_mixed_1)
        d_key += tl.dot(tl.trans(d_scores), query_1)
        d_query_1 += tl.dot(d_scores, key)
        _store_unrotated(
            d_base + d_model,
            d_key * scale,
            columns,
            seq,
            stride,
            cos,
            sin,
            ROTATE,
            COLUMNS,
            D_HEAD,
        )
        _store_unrotated(
            d_base + 2 * d_model,
            d_value,
            columns,
            seq,
            stride,
            cos,
            sin,
            False,
            COLUMNS,
            D_HEAD,
        )
    _store_unrotated(d_base, d_query_0 * scale, low, seq, stride, cos, sin, ROTATE, HALF, D_HEAD)
    # The first half of the rows never looks at the second half of the columns.
    for begin in range(HALF, seq, COLUMNS):
        columns = begin + tl.arange(0, COLUMNS)
        key = _load_rotated(base + d_model, columns, seq, stride, cos, sin, ROTATE, COLUMNS, D_HEAD)
        value = _load(base + 2 * d_model, columns, seq, stride, D_HEAD)
        weights, d_scores = _look_back(
            query_1, d_mixed_1, delta_1, log_1, high, key, value, columns, scale_log2
        )
        d_value = tl.dot(tl.trans(weights), d_mixed_1)
        d_key = tl.dot(tl.trans(d_scores), query_1)
        d_query_1 += tl.dot(d_scores, key)
        _store_unrotated(
            d_base + d_model,
            d_key * scale,
            columns,
            seq,
            stride,
            cos,
            sin,
            ROTATE,
            COLUMNS,
            D_HEAD,
        )
        _store_unrotated(
            d_base + 2 * d_model,
            d_value,
            columns,
            seq,
            stride,
            cos,
            sin,
            False,
            COLUMNS,
            D_HEAD,
        )
    _store_unrotated(d_base, d_query_1 * scale, high, seq, stride, cos, sin, ROTATE, HALF, D_HEAD)
