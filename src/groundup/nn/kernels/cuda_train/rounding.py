"""Round the operands of float8 matmuls, each in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK, _TILE = 4096, 64
_LARGEST = tl.constexpr(448.0)


def rounded_both_ways(x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """Round factor · x to float8 (e4m3); return it and its transpose, both row-major."""
    x = x.contiguous()
    out = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    transposed = out.new_empty(out.shape[::-1])
    grid = (triton.cdiv(len(x), _TILE), triton.cdiv(x.shape[1], _TILE))
    _round_both_ways[grid](x, out, transposed, *x.shape, factor, TILE=_TILE, num_warps=4)
    return out, transposed


@torch.library.custom_op("groundup::rounded_rows", mutates_args=())
def rounded_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round rows, divided by their largest values, to float8 (e4m3); return them and the scales."""
    x = x.contiguous()
    small = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    scale = x.new_empty(len(x), 1, dtype=torch.float32)
    block = triton.next_power_of_2(x.shape[1])
    rows = max(1, _BLOCK // block)
    sizes = {"WIDTH": x.shape[1], "ROWS": rows, "BLOCK": block}
    warps = min(max(rows * block // 1024, 1), 16)
    _round_rows[(triton.cdiv(len(x), rows),)](x, small, scale, len(x), **sizes, num_warps=warps)
    return small, scale


@rounded_rows.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    small = x.new_empty(x.shape, dtype=torch.float8_e4m3fn)
    return small, x.new_empty(len(x), 1, dtype=torch.float32)


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
def _small(value):
    # NaN must stay NaN, or a bad step would go unnoticed.
    kept = tl.clamp(value, -_LARGEST, _LARGEST, propagate_nan=tl.PropagateNan.ALL)
    return kept.to(tl.float8e4nv)
