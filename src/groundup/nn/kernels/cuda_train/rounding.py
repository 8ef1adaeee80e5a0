"""Operands of float8 matmuls: by a pass of their own, or by the one that computes the gate."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from groundup.nn.kernels.cuda_train.gating import gate_gradients, gated

_BLOCK, _TILE = 4096, 64
_LARGEST = tl.constexpr(448.0)


def rounded_by(x: Tensor, factor: float) -> Tensor:
    """factor · x in float8 (e4m3)."""
    x = x.contiguous()
    out = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    _round[(triton.cdiv(x.numel(), _BLOCK),)](x, out, x.numel(), factor, BLOCK=_BLOCK, num_warps=4)
    return out


def rounded_both_ways(x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """factor · x in float8 (e4m3), and its transpose, both row by row in memory."""
    x = x.contiguous()
    out = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    transposed = out.new_empty(out.shape[::-1])
    grid = (triton.cdiv(len(x), _TILE), triton.cdiv(x.shape[1], _TILE))
    _round_both_ways[grid](x, out, transposed, *x.shape, factor, TILE=_TILE, num_warps=4)
    return out, transposed


@torch.library.custom_op("groundup::rounded_rows", mutates_args=())
def rounded_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows divided by their largest values, in float8 (e4m3), and what to multiply them by."""
    x = x.contiguous()
    small, scale = _empty(x, x.shape[1])
    block = triton.next_power_of_2(x.shape[1])
    rows = max(1, _BLOCK // block)
    sizes = {"WIDTH": x.shape[1], "ROWS": rows, "BLOCK": block}
    warps = min(max(rows * block // 1024, 1), 16)
    _round_rows[(triton.cdiv(len(x), rows),)](x, small, scale, len(x), **sizes, num_warps=warps)
    return small, scale


@rounded_rows.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    small, scale = _empty(x, x.shape[1])
    return small, scale


@torch.library.custom_op("groundup::rounded_swiglu", mutates_args=())
def rounded_swiglu(packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """silu(gate) · up for rows of gate and up side by side; its rows in float8, their scales."""
    out = packed.new_empty(len(packed), packed.shape[1] // 2)
    small, scale = _empty(packed, out.shape[1])
    _gate[(len(packed),)](packed, out, small, scale, **_blocks(packed))
    return out, small, scale


@rounded_swiglu.register_fake
def _(packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    d_ff = packed.shape[1] // 2
    return packed.new_empty(len(packed), d_ff), *_empty(packed, d_ff)


@torch.library.custom_op("groundup::rounded_swiglu_backward", mutates_args=())
def rounded_swiglu_backward(d_out: Tensor, packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of `packed`; its rows in float8, their scales."""
    d_out = d_out.contiguous()
    d_packed = torch.empty_like(packed)
    small, scale = _empty(packed, packed.shape[1])
    _gate_backward[(len(packed),)](packed, d_out, d_packed, small, scale, **_blocks(packed))
    return d_packed, small, scale


@rounded_swiglu_backward.register_fake
def _(d_out: Tensor, packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(packed), *_empty(packed, packed.shape[1])


def _empty(rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """For rounded rows of that width, and for their scales."""
    small = rows.new_empty(len(rows), width, dtype=torch.float8_e4m3fn)
    return small, rows.new_empty(len(rows), 1, dtype=torch.float32)


def _blocks(packed: Tensor) -> dict[str, int]:
    d_ff = packed.shape[1] // 2
    block = triton.next_power_of_2(d_ff)
    return {"D_FF": d_ff, "BLOCK": block, "num_warps": min(max(block // 512, 1), 16)}


@triton.jit
def _round(x, out, count, factor, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = factor * tl.load(x + index, mask=index < count, other=0.0).to(tl.float32)
    tl.store(out + index, _small(value), mask=index < count)


@triton.jit
def _round_both_ways(x, out, transposed, num_rows, num_columns, factor, TILE: tl.constexpr):
    row = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.int64)[:, None]
    column = (tl.program_id(1) * TILE + tl.arange(0, TILE)).to(tl.int64)[None, :]
    inside = (row < num_rows) & (column < num_columns)
    value = factor * tl.load(x + row * num_columns + column, mask=inside, other=0.0).to(tl.float32)
    small = _small(value)
    tl.store(out + row * num_columns + column, small, mask=inside)
    offset = tl.trans(column) * num_rows + tl.trans(row)
    tl.store(transposed + offset, tl.trans(small), mask=tl.trans(inside))


@triton.jit
def _round_rows(
    x, small, scale, num_rows, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < num_rows)[:, None] & (column < WIDTH)
    offset = row[:, None] * WIDTH + column
    value = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
    most = tl.maximum(tl.max(tl.abs(value), axis=1), 1e-30)
    tl.store(small + offset, (value * (_LARGEST / most)[:, None]).to(tl.float8e4nv), mask=inside)
    tl.store(scale + row, most / _LARGEST, mask=row < num_rows)


@triton.jit
def _gate(packed, out, small, scale, D_FF: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK)
    inside = index < D_FF
    gate = tl.load(packed + row * 2 * D_FF + index, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(packed + (row * 2 + 1) * D_FF + index, mask=inside, other=0.0).to(tl.float32)
    y = gated(gate, up)
    most = tl.maximum(tl.max(tl.abs(y)), 1e-30)
    tl.store(out + row * D_FF + index, y, mask=inside)
    tl.store(small + row * D_FF + index, (y * (_LARGEST / most)).to(tl.float8e4nv), mask=inside)
    tl.store(scale + row, most / _LARGEST)


@triton.jit
def _gate_backward(packed, d_out, d_packed, small, scale, D_FF: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK)
    inside = index < D_FF
    of_gate, of_up = row * 2 * D_FF + index, (row * 2 + 1) * D_FF + index
    gate = tl.load(packed + of_gate, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(packed + of_up, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(d_out + row * D_FF + index, mask=inside, other=0.0).to(tl.float32)
    d_gate, d_up = gate_gradients(gate, up, d)
    most = tl.maximum(tl.max(tl.maximum(tl.abs(d_gate), tl.abs(d_up))), 1e-30)
    factor = _LARGEST / most
    tl.store(d_packed + of_gate, d_gate, mask=inside)
    tl.store(d_packed + of_up, d_up, mask=inside)
    tl.store(small + of_gate, (d_gate * factor).to(tl.float8e4nv), mask=inside)
    tl.store(small + of_up, (d_up * factor).to(tl.float8e4nv), mask=inside)
    tl.store(scale + row, most / _LARGEST)


@triton.jit
def _small(value):
    # What is not a number stays so, or a bad step would not be found.
    kept = tl.clamp(value, -_LARGEST, _LARGEST, propagate_nan=tl.PropagateNan.ALL)
    return kept.to(tl.float8e4nv)
