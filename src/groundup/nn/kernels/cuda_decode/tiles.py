"""Matmuls of a few rows with a weight, as kernels put them together: tiles along the depth.

The depth is cut into spans of `PARTS` parts; a warp has the same part of all spans. So a sum along
the depth runs in one order, however many rows and columns a tile has.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _weights(
    weight,
    out_column,
    start,
    num_columns,
    DEPTH: tl.constexpr,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
    STEP: tl.constexpr,
):
    """A tile of the weight, (parts, columns, step)."""
    part = start + tl.arange(0, PARTS) * PART
    column = part[:, None, None] + tl.arange(0, STEP)[None, None, :]
    fits = (column < DEPTH) & (out_column < num_columns)[None, :, None]
    offset = out_column.to(tl.int64)[None, :, None] * DEPTH + column
    return tl.load(weight + offset, mask=fits, other=0.0)


@triton.jit
def _inputs(
    inputs, row, start, num_rows,
    DEPTH: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """A tile of inputsᵀ, (parts, step, rows)."""
    part = start + tl.arange(0, PARTS) * PART
    column = part[:, None, None] + tl.arange(0, STEP)[None, :, None]
    fits = (column < DEPTH) & (row < num_rows)[None, None, :]
    return tl.load(inputs + row[None, None, :] * DEPTH + column, mask=fits, other=0.0)


@triton.jit
def all_weights(
    weight,
    out_column,
    num_columns,
    DEPTH: tl.constexpr,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """All tiles along the depth, if they are read ahead."""
    tiles = ()
    if AHEAD:
        for start in tl.static_range(0, DEPTH, PARTS * PART):
            tile = _weights(weight, out_column, start, num_columns, DEPTH, PARTS, PART, PART)
            tiles = tiles + (tile,)  # type: ignore[assignment]  # noqa: RUF005
    return tiles


@triton.jit
def all_inputs(
    inputs,
    row,
    num_rows,
    DEPTH: tl.constexpr,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """All tiles along the depth, if they are read together."""
    tiles = ()
    if TOGETHER:
        for start in tl.static_range(0, DEPTH, PARTS * PART):
            tile = _inputs(inputs, row, start, num_rows, DEPTH, PARTS, PART, PART)
            tiles = tiles + (tile,)  # type: ignore[assignment]  # noqa: RUF005
    return tiles


@triton.jit
def dot(
    weight,
    weights,
    inputs,
    values,
    out_column,
    num_columns,
    row,
    num_rows,
    DEPTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
    STEP: tl.constexpr,
    TOGETHER: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """weight inputsᵀ, (columns, rows): each part of the depth by itself, then their sum.

    weights, values: the tiles that have been read.
    """
    total = tl.zeros((PARTS, COLUMNS, ROWS), dtype=tl.float32)
    if AHEAD:
        for index in tl.static_range((DEPTH + PARTS * PART - 1) // (PARTS * PART)):
            if TOGETHER:
                value = values[index]
            else:
                start = index * PARTS * PART
                value = _inputs(inputs, row, start, num_rows, DEPTH, PARTS, PART, PART)
            total = tl.dot(weights[index], value, total)
    else:
        steps: tl.constexpr = PART // STEP
        num_spans: tl.constexpr = (DEPTH + PARTS * PART - 1) // (PARTS * PART)
        for index in range(num_spans * steps):
            start = index // steps * (PARTS * PART) + index % steps * STEP
            tile = _weights(weight, out_column, start, num_columns, DEPTH, PARTS, PART, STEP)
            value = _inputs(inputs, row, start, num_rows, DEPTH, PARTS, PART, STEP)
            total = tl.dot(tile, value, total)
    return tl.sum(total, axis=0)
