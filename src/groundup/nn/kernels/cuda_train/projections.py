"""Packed projections on their way to attention, and gradients on their way back, a pass over memory
each: queries and keys normalized and rotated, values with the extra ones added."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Elements, whole heads of them, that one program loads at once, and its warps.
_TILE = 2048
_WARPS = 2


def prepare(
    packed: Tensor,
    num_heads: int,
    num_parts: int,
    cos: Tensor | None,
    sin: Tensor | None,
    query_gain: Tensor | None,
    key_gain: Tensor | None,
    eps: float,
    extra: Tensor | None,
    factor: Tensor | None,
) -> Tensor:
    """Queries, keys and, as a third part if asked for, values: (batch, seq, parts, heads, d_head).

    Each head x of the first two becomes rotation(x / √(mean(x²) + eps) · gain), the values
    v + factor · extra; what is None is left out.

    packed: (batch, seq, 3 · d_model).   cos, sin: (at least seq, d_head / 2).
    query_gain, key_gain: (d_head,).   extra: (batch, seq, d_model).   factor: one number.
    """
    batch, seq, width = packed.shape
    d_head = width // 3 // num_heads
    out = packed.new_empty(batch, seq, num_parts, num_heads, d_head)
    count, tiles = _tiles(packed, num_heads)
    extra = None if extra is None else extra.contiguous()
    _prepare[(triton.cdiv(count, tiles["TILE"]), num_parts)](
        packed,
        out,
        *_filled(packed, cos, sin, query_gain, key_gain, extra, factor),
        eps,
        count,
        seq,
        PARTS=num_parts,
        NORMALIZES=query_gain is not None,
        ROTATES=cos is not None,
        ADDS=extra is not None,
        **tiles,
    )
    return out


def prepare_backward(
    gradients: tuple[Tensor, Tensor, Tensor],
    packed: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    query_gain: Tensor | None,
    key_gain: Tensor | None,
    eps: float,
    extra: Tensor | None,
    factor: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the packed projections, of both gains (2, d_head), of the extra values and
    of their factor; empty ones of what is None.

    gradients: of queries, keys and values as `prepare` returned them, (batch, heads, seq, d_head).
    """
    parts = [part if part.stride(-1) == 1 else part.contiguous() for part in gradients]
    _, num_heads, seq, d_head = parts[0].shape
    count, tiles = _tiles(packed, num_heads)
    num_programs = triton.cdiv(count, tiles["TILE"])
    d_packed = torch.empty_like(packed)
    extra = None if extra is None else extra.contiguous()
    d_extra = packed.new_empty(0) if extra is None else torch.empty_like(extra)
    sums = packed.new_empty(0, dtype=torch.float32)
    d_gains = sums.new_empty(0 if query_gain is None else (2, num_programs, d_head))
    d_factor = sums.new_empty(0 if extra is None else num_programs)
    _prepare_backward[(num_programs, 3)](
        *parts,
        packed,
        *_filled(packed, cos, sin, query_gain, key_gain, extra, factor),
        d_packed,
        d_gains,
        d_extra,
        d_factor,
        *[part.stride(axis) for part in parts for axis in (0, 1, 2)],
        eps,
        count,
        seq,
        NORMALIZES=query_gain is not None,
        ROTATES=cos is not None,
        ADDS=extra is not None,
        **tiles,
    )
    if query_gain is not None:
        d_gains = d_gains.sum(dim=1)
    if extra is not None:
        d_factor = d_factor.sum(dim=0, keepdim=True)
    return d_packed, d_gains, d_extra, d_factor


def _tiles(packed: Tensor, num_heads: int) -> tuple[int, dict[str, int]]:
    """How many heads all rows have, and how programs share them."""
    d_head = packed.shape[-1] // 3 // num_heads
    block = triton.next_power_of_2(d_head)
    tile = {"HEADS": num_heads, "D_HEAD": d_head, "BLOCK": block, "TILE": _TILE // block}
    return packed.numel() // (3 * d_head), {**tile, "num_warps": _WARPS}


def _filled(like: Tensor, *tensors: Tensor | None) -> list[Tensor]:
    """A kernel does not look at what stands for None."""
    return [like if tensor is None else tensor for tensor in tensors]


@triton.jit
def rotated(x, cos, sin, ROWS: tl.constexpr, D_HEAD: tl.constexpr):
    """Rotate the pairs (2k, 2k + 1) of each row of a tile; a negative sine rotates them back."""
    even, odd = tl.split(tl.reshape(x, (ROWS, D_HEAD // 2, 2)))
    return tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), (ROWS, D_HEAD))


@triton.jit
def _angles(table, position, inside, D_HEAD: tl.constexpr, BLOCK: tl.constexpr):
    pair = tl.arange(0, BLOCK // 2)
    offset = position[:, None] * (D_HEAD // 2) + pair[None, :]
    return tl.load(table + offset, mask=inside[:, None] & (pair < D_HEAD // 2)[None, :], other=0.0)


@triton.jit
def _gain(query_gain, key_gain, part, D_HEAD: tl.constexpr, BLOCK: tl.constexpr):
    dim = tl.arange(0, BLOCK)
    of_query = tl.load(query_gain + dim, mask=dim < D_HEAD, other=0.0)
    of_key = tl.load(key_gain + dim, mask=dim < D_HEAD, other=0.0)
    return tl.where(part == 0, of_query, of_key).to(tl.float32)


@triton.jit
def _prepare(
    packed, out, cos, sin, query_gain, key_gain, extra, factor, eps, count, seq,
    PARTS: tl.constexpr, NORMALIZES: tl.constexpr, ROTATES: tl.constexpr, ADDS: tl.constexpr,
    HEADS: tl.constexpr, D_HEAD: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    # The heads of all rows are numbered row after row.
    index = tl.program_id(0) * TILE + tl.arange(0, TILE)
    part = tl.program_id(1)
    row, head = (index // HEADS).to(tl.int64), index % HEADS
    dim = tl.arange(0, BLOCK)
    inside = (index < count)[:, None] & (dim < D_HEAD)[None, :]
    offset = ((row * 3 + part) * HEADS + head)[:, None] * D_HEAD + dim[None, :]
    x = tl.load(packed + offset, mask=inside, other=0.0).to(tl.float32)
    if part < 2:
        if NORMALIZES:
            gain = _gain(query_gain, key_gain, part, D_HEAD, BLOCK)
            scale = tl.rsqrt(tl.sum(x * x, axis=1) / D_HEAD + eps)
            x = x * scale[:, None] * gain[None, :]
        if ROTATES:
            c = _angles(cos, row % seq, index < count, D_HEAD, BLOCK)
            s = _angles(sin, row % seq, index < count, D_HEAD, BLOCK)
            x = rotated(x, c, s, TILE, BLOCK)
    else:
        if ADDS:
            added = (row * HEADS + head)[:, None] * D_HEAD + dim[None, :]
            e = tl.load(extra + added, mask=inside, other=0.0).to(tl.float32)
            x += tl.load(factor).to(tl.float32) * e
    offset = ((row * PARTS + part) * HEADS + head)[:, None] * D_HEAD + dim[None, :]
    tl.store(out + offset, x, mask=inside)


@triton.jit
def _prepare_backward(
    d_query, d_key, d_value, packed, cos, sin, query_gain, key_gain, extra, factor,
    d_packed, d_gains, d_extra, d_factor,
    query_batch_stride, query_head_stride, query_row_stride,
    key_batch_stride, key_head_stride, key_row_stride,
    value_batch_stride, value_head_stride, value_row_stride,
    eps, count, seq,
    NORMALIZES: tl.constexpr, ROTATES: tl.constexpr, ADDS: tl.constexpr,
    HEADS: tl.constexpr, D_HEAD: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """With n = x / √(mean(x²) + eps) and y = n · gain:

    dx = (dy · gain - n · mean(dy · gain · n)) / √(mean(x²) + eps);   dgain = Σ dy · n
    """
    index = tl.program_id(0) * TILE + tl.arange(0, TILE)
    part = tl.program_id(1)
    row, head = (index // HEADS).to(tl.int64), index % HEADS
    batch, position = row // seq, row % seq
    dim = tl.arange(0, BLOCK)
    inside = (index < count)[:, None] & (dim < D_HEAD)[None, :]
    offset = ((row * 3 + part) * HEADS + head)[:, None] * D_HEAD + dim[None, :]
    if part == 0:
        first = batch * query_batch_stride + position * query_row_stride + head * query_head_stride
        source = d_query + first[:, None] + dim[None, :]
    elif part == 1:
        first = batch * key_batch_stride + position * key_row_stride + head * key_head_stride
        source = d_key + first[:, None] + dim[None, :]
    else:
        first = batch * value_batch_stride + position * value_row_stride + head * value_head_stride
        source = d_value + first[:, None] + dim[None, :]
    dy = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    if part < 2:
        if ROTATES:
            c = _angles(cos, position, index < count, D_HEAD, BLOCK)
            s = _angles(sin, position, index < count, D_HEAD, BLOCK)
            dy = rotated(dy, c, -s, TILE, BLOCK)
        if NORMALIZES:
            x = tl.load(packed + offset, mask=inside, other=0.0).to(tl.float32)
            gain = _gain(query_gain, key_gain, part, D_HEAD, BLOCK)
            scale = tl.rsqrt(tl.sum(x * x, axis=1) / D_HEAD + eps)[:, None]
            n = x * scale
            share = part * tl.num_programs(0) + tl.program_id(0)
            d_gain = tl.sum(dy * n, axis=0)
            tl.store(d_gains + share * D_HEAD + dim, d_gain, mask=dim < D_HEAD)
            dy = dy * gain[None, :]
            dy = (dy - n * (tl.sum(dy * n, axis=1) / D_HEAD)[:, None]) * scale
    else:
        if ADDS:
            added = (row * HEADS + head)[:, None] * D_HEAD + dim[None, :]
            e = tl.load(extra + added, mask=inside, other=0.0).to(tl.float32)
            tl.store(d_extra + added, dy * tl.load(factor).to(tl.float32), mask=inside)
            tl.store(d_factor + tl.program_id(0), tl.sum(tl.sum(dy * e, axis=1), axis=0))
    tl.store(d_packed + offset, dy, mask=inside)
