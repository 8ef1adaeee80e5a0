"""One token a row through a Transformer block, for generating on CUDA in half precision.

Every row's numbers depend on that row alone: matmuls add up in one order whatever the number of
rows, so a text does not change with what else is being generated. Five launches make a block:

    packed = norm(x) [W_query; W_key; W_value]ᵀ      `normed_matmul`
    mixed  = attention over the row's cache          `attention.attend`
    x     += mixed W_outputᵀ                         `add_matmul`
    gated  = silu(norm(x) W_gateᵀ) · norm(x) W_upᵀ   `gated_matmul`
    x     += gated W_downᵀ                           `add_matmul`

x stays in float32; weights, cache and what flows between are in half precision.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

# How a matmul is split into tiles. Sums run along the depth in an order that must not depend on the
# number of rows, or rows would feel each other in the last digit: all but the number of columns is
# fixed. Sixteen rows are the fewest that tensor cores take.
_ROWS = 16
_DEPTH = 128
_STAGES = 4
# Multiprocessors of the GPUs this is for, less a few.
_MAX_PROGRAMS = 128


def embed(ids: Tensor, table: Tensor, x: Tensor) -> None:
    """x = table[ids], one program a row."""
    width = table.shape[1]
    _embed[(len(x),)](
        ids, table, x, ids.stride(0), WIDTH=width, BLOCK=triton.next_power_of_2(width)
    )


def to_logits(
    x: Tensor,
    gain: Tensor,
    eps: float,
    weight: Tensor,
    normal: Tensor,
    logits: Tensor,
    soft_cap: float | None = None,
) -> None:
    """logits = norm(x) weightᵀ, soft-capped if a cap is given; `normal` is for the norm.

    The vocabulary is so large that reading its weights is all that counts, so many rows go
    together, and the norm is taken once and not in every tile.
    """
    width = x.shape[1]
    _normalize[(len(x),)](
        x, gain, normal, eps, WIDTH=width, BLOCK=triton.next_power_of_2(width), num_warps=4
    )
    _matmul[(triton.cdiv(len(weight), 128), triton.cdiv(len(x), 64))](
        normal,
        weight,
        logits,
        len(x),
        len(weight),
        soft_cap or 0.0,
        DEPTH=width,
        ROWS=64,
        COLUMNS=128,
        BLOCK=64,
        num_warps=4,
        num_stages=4,
    )


def normed_matmul(x: Tensor, gain: Tensor, eps: float, weight: Tensor, out: Tensor) -> None:
    """out = norm(x) weightᵀ."""
    tiles = _tiles(len(x), len(weight))
    _normed_matmul[_grid(len(x), len(weight), tiles)](
        x,
        gain,
        weight,
        out,
        len(x),
        len(weight),
        eps,
        DEPTH=x.shape[1],
        **tiles,
        num_warps=2,
    )


def gated_matmul(x: Tensor, gain: Tensor, eps: float, weight: Tensor, out: Tensor) -> None:
    """out = silu(norm(x) W_gateᵀ) · norm(x) W_upᵀ, the weights on top of each other."""
    width = len(weight) // 2
    tiles = _tiles(len(x), width)
    _gated_matmul[_grid(len(x), width, tiles)](
        x,
        gain,
        weight,
        out,
        len(x),
        width,
        eps,
        DEPTH=x.shape[1],
        **tiles,
        num_warps=2,
    )


def add_matmul(inputs: Tensor, weight: Tensor, x: Tensor) -> None:
    """x += inputs weightᵀ."""
    tiles = _tiles(len(x), len(weight))
    _add_matmul[_grid(len(x), len(weight), tiles)](
        inputs,
        weight,
        x,
        len(x),
        len(weight),
        DEPTH=inputs.shape[1],
        **tiles,
        num_warps=4,
    )


def _tiles(num_rows: int, num_columns: int) -> dict[str, int]:
    """The narrowest tiles with which the programs of a matmul run all at once."""
    row_tiles = triton.cdiv(num_rows, _ROWS)
    columns = 16
    while columns < 64 and triton.cdiv(num_columns, columns) * row_tiles > _MAX_PROGRAMS:
        columns *= 2
    return {
        "ROWS": _ROWS,
        "COLUMNS": columns,
        "BLOCK": _DEPTH,
        "num_stages": _STAGES,
    }


def _grid(num_rows: int, num_columns: int, tiles: dict[str, int]) -> tuple[int, int]:
    return triton.cdiv(num_columns, tiles["COLUMNS"]), triton.cdiv(num_rows, tiles["ROWS"])


@triton.jit
def _embed(ids, table, x, stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    id = tl.load(ids + row * stride).to(tl.int64)
    column = tl.arange(0, BLOCK)
    value = tl.load(table + id * WIDTH + column, mask=column < WIDTH)
    tl.store(x + row * WIDTH + column, value.to(tl.float32), mask=column < WIDTH)


@triton.jit
def _normed_rows(x, gain, row, column, num_rows, DEPTH: tl.constexpr):
    """A tile of x · gain, and the squares of x."""
    fits = (row < num_rows)[:, None] & (column < DEPTH)[None, :]
    value = tl.load(x + row[:, None] * DEPTH + column[None, :], mask=fits, other=0.0)
    scale = tl.load(gain + column, mask=column < DEPTH, other=0.0).to(tl.float32)
    return value * scale[None, :], value * value


@triton.jit
def _weights(weight, out_column, column, num_columns, DEPTH: tl.constexpr):
    """A tile of weightᵀ."""
    fits = (column < DEPTH)[:, None] & (out_column < num_columns)[None, :]
    offset = out_column.to(tl.int64)[None, :] * DEPTH + column[:, None]
    return tl.load(weight + offset, mask=fits, other=0.0)


@triton.jit
def _normalize(x, gain, normal, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    fits = column < WIDTH
    value = tl.load(x + row * WIDTH + column, mask=fits, other=0.0)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / WIDTH + eps)
    value = value * scale * tl.load(gain + column, mask=fits, other=0.0).to(tl.float32)
    tl.store(normal + row * WIDTH + column, value.to(normal.dtype.element_ty), mask=fits)


@triton.jit(do_not_specialize=["num_rows"])
def _matmul(
    inputs,
    weight,
    out,
    num_rows,
    num_columns,
    soft_cap,
    DEPTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    out_column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, DEPTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        fits = (row < num_rows)[:, None] & (column < DEPTH)[None, :]
        value = tl.load(inputs + row[:, None] * DEPTH + column[None, :], mask=fits, other=0.0)
        tile = _weights(weight, out_column, column, num_columns, DEPTH)
        total = tl.dot(value, tile, total)
    if soft_cap > 0:
        # tanh(y) = 1 - 2 / (e^(2y) + 1).
        total = soft_cap * (1.0 - 2.0 / (tl.exp(2.0 * total / soft_cap) + 1.0))
    fits = (row < num_rows)[:, None] & (out_column < num_columns)[None, :]
    offset = row.to(tl.int64)[:, None] * num_columns + out_column[None, :]
    tl.store(out + offset, total, mask=fits)


@triton.jit(do_not_specialize=["num_rows"])
def _normed_matmul(
    x,
    gain,
    weight,
    out,
    num_rows,
    num_columns,
    eps,
    DEPTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    out_column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    squares = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    # The norm divides a whole row by one number, so that it can wait until after the matmul.
    for start in range(0, DEPTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value, added = _normed_rows(x, gain, row, column, num_rows, DEPTH)
        squares += added
        tile = _weights(weight, out_column, column, num_columns, DEPTH)
        total = tl.dot(value.to(tile.dtype), tile, total)
    total *= tl.rsqrt(tl.sum(squares, axis=1) / DEPTH + eps)[:, None]
    fits = (row < num_rows)[:, None] & (out_column < num_columns)[None, :]
    offset = row[:, None] * num_columns + out_column[None, :]
    tl.store(out + offset, total.to(out.dtype.element_ty), mask=fits)


@triton.jit(do_not_specialize=["num_rows"])
def _gated_matmul(
    x,
    gain,
    weight,
    out,
    num_rows,
    width,
    eps,
    DEPTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    out_column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    squares = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    gate = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    up = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, DEPTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value, added = _normed_rows(x, gain, row, column, num_rows, DEPTH)
        squares += added
        gates = _weights(weight, out_column, column, width, DEPTH)
        ups = _weights(weight + width * DEPTH, out_column, column, width, DEPTH)
        value = value.to(gates.dtype)
        gate = tl.dot(value, gates, gate)
        up = tl.dot(value, ups, up)
    scale = tl.rsqrt(tl.sum(squares, axis=1) / DEPTH + eps)[:, None]
    gate *= scale
    gated = gate / (1.0 + tl.exp(-gate)) * up * scale
    fits = (row < num_rows)[:, None] & (out_column < width)[None, :]
    offset = row[:, None] * width + out_column[None, :]
    tl.store(out + offset, gated.to(out.dtype.element_ty), mask=fits)


@triton.jit(do_not_specialize=["num_rows"])
def _add_matmul(
    inputs,
    weight,
    x,
    num_rows,
    num_columns,
    DEPTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    out_column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, DEPTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        fits = (row < num_rows)[:, None] & (column < DEPTH)[None, :]
        value = tl.load(inputs + row[:, None] * DEPTH + column[None, :], mask=fits, other=0.0)
        tile = _weights(weight, out_column, column, num_columns, DEPTH)
        total = tl.dot(value, tile, total)
    fits = (row < num_rows)[:, None] & (out_column < num_columns)[None, :]
    offset = x + row[:, None] * num_columns + out_column[None, :]
    tl.store(offset, tl.load(offset, mask=fits, other=0.0) + total, mask=fits)
