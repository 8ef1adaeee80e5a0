"""Rotary embedding on packed queries, keys and values: there, and back for the gradients."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


def rotate_packed(packed: Tensor, cos: Tensor, sin: Tensor, num_heads: int) -> Tensor:
    """Rotated queries and keys (batch, seq, 2, heads, d_head) of (batch, seq, 3 · d_model)."""
    batch, seq, width = packed.shape
    d_model = width // 3
    d_head = d_model // num_heads
    out = packed.new_empty(batch, seq, 2, num_heads, d_head)
    _rotate[(batch * seq,)](
        packed,
        out,
        cos,
        sin,
        seq,
        width,
        COLUMNS=2 * d_model,
        BLOCK=triton.next_power_of_2(2 * d_model),
        D_HEAD=d_head,
        num_warps=4,
    )
    return out


def pack_gradients(
    d_query: Tensor, d_key: Tensor, d_value: Tensor, cos: Tensor | None, sin: Tensor | None
) -> Tensor:
    """Gradients of rotated queries, keys and of values, rotated back and laid side by side."""
    batch, num_heads, seq, d_head = d_query.shape
    d_model = num_heads * d_head
    packed = d_query.new_empty(batch, seq, 3 * d_model)
    parts = [
        part if part.stride(-1) == 1 else part.contiguous() for part in (d_query, d_key, d_value)
    ]
    strides = [part.stride(axis) for part in parts for axis in (0, 1, 2)]
    _pack[(batch * seq, 3)](
        *parts,
        packed,
        packed if cos is None else cos,
        packed if sin is None else sin,
        *strides,
        seq,
        D_MODEL=d_model,
        BLOCK=triton.next_power_of_2(d_model),
        D_HEAD=d_head,
        ROTATE=cos is not None,
        num_warps=4,
    )
    return packed


@triton.jit
def rotated(x, cos, sin, ROWS: tl.constexpr, D_HEAD: tl.constexpr):
    """Rotate the pairs (2k, 2k + 1) of each row of a tile; a negative sine rotates them back."""
    even, odd = tl.split(tl.reshape(x, (ROWS, D_HEAD // 2, 2)))
    return tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), (ROWS, D_HEAD))


@triton.jit
def _rotate(
    packed,
    out,
    cos,
    sin,
    seq,
    width,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    D_HEAD: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < COLUMNS
    x = tl.load(packed + row * width + column, mask=inside, other=0.0).to(tl.float32)
    pair = tl.arange(0, BLOCK // 2)
    angle = (row % seq) * (D_HEAD // 2) + pair % (D_HEAD // 2)
    c, s = tl.load(cos + angle), tl.load(sin + angle)
    even, odd = tl.split(tl.reshape(x, (BLOCK // 2, 2)))
    y = tl.reshape(tl.join(even * c - odd * s, even * s + odd * c), (BLOCK,))
    tl.store(out + row * COLUMNS + column, y, mask=inside)


@triton.jit
def _pack(
    d_query,
    d_key,
    d_value,
    packed,
    cos,
    sin,
    query_batch_stride,
    query_head_stride,
    query_row_stride,
    key_batch_stride,
    key_head_stride,
    key_row_stride,
    value_batch_stride,
    value_head_stride,
    value_row_stride,
    seq,
    D_MODEL: tl.constexpr,
    BLOCK: tl.constexpr,
    D_HEAD: tl.constexpr,
    ROTATE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    batch, position = row // seq, row % seq
    column = tl.arange(0, BLOCK)
    inside = column < D_MODEL
    head, dim = column // D_HEAD, column % D_HEAD
    if part == 0:
        source = d_query + batch * query_batch_stride + position * query_row_stride
        source += head * query_head_stride + dim
    elif part == 1:
        source = d_key + batch * key_batch_stride + position * key_row_stride
        source += head * key_head_stride + dim
    else:
        source = d_value + batch * value_batch_stride + position * value_row_stride
        source += head * value_head_stride + dim
    x = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    if ROTATE:  # noqa: SIM102 (one is known when compiling, the other is not)
        if part < 2:
            angle = position * (D_HEAD // 2) + tl.arange(0, BLOCK // 2) % (D_HEAD // 2)
            c, s = tl.load(cos + angle), tl.load(sin + angle)
            even, odd = tl.split(tl.reshape(x, (BLOCK // 2, 2)))
            x = tl.reshape(tl.join(even * c + odd * s, odd * c - even * s), (BLOCK,))
    tl.store(packed + row * (3 * D_MODEL) + part * D_MODEL + column, x, mask=inside)
