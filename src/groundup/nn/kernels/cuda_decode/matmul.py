"""Matmuls of a few rows with a weight, one kernel with several epilogues, for generating on CUDA.

Every row's numbers depend on that row alone: sums along the depth run in one order whatever the
number of rows, so a text does not change with what else is being generated. The depth is cut into
spans of `PARTS` parts, and a warp has the same part of all spans. x stays in float32, with a copy
in half precision for the matmuls; the norms' gains are part of the weights. With so few rows
reading the weights is all the work, and waiting for the launch before is most of the time: so a
launch begins early, reads its weights, lets those that a later launch reads be on their way to the
cache (`soon`), and only then waits (`launch`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from groundup.nn.kernels.cuda_decode.launch import (
    MAX_SOON_BYTES,
    begin,
    options,
    prefetch,
    shared_memory_bytes,
    wait,
)

# How a matmul is split into tiles. How the depth is cut into parts and spans must not depend on the
# number of rows. Tensor cores take eight rows.
_FEWEST_ROWS, _LOW_ROWS, _MOST_ROWS = 8, 16, 32
_PART = tl.constexpr(64)
# So many rows are those of prompts: there are programs enough whatever the tiles, so that these are
# large; and half of a part is read at a time, so that a multiprocessor has room for two programs
# where a row has no more than 1,024 values.
_PROMPT_ROWS, _PROMPT_TILE, _PROMPT_STEP = 256, (64, 64), 32
# About as many programs as the GPUs this is for have multiprocessors.
_NUM_PROGRAMS = 144
# Shared memory that a program needs besides the tiles it reads ahead.
_SPARE_BYTES = 2 << 10
# What becomes of a product; swiglu is gated.
_EPILOGUES = {"swiglu": 0, "silu": 1, "gelu": 2, "relu2": 3, "none": 4, "add": 5}
_ADD = tl.constexpr(5)
# Columns of the narrowest tiles.
TILE = tl.constexpr(16)


class Stream(NamedTuple):
    """The residual stream, a row for each token."""

    x: Tensor
    """In float32."""
    half: Tensor
    """The same as matmuls take it; after the last block multiplied by the gain of the norm."""
    squares: Tensor
    """The sum of the squares of each 16 columns of x; the norms' part of the work."""

    def rows(self, n: int) -> Stream:
        """Those of the first n tokens."""
        return Stream(*(part[:n] for part in self))


def embed(ids: Tensor, table: Tensor, stream: Stream) -> None:
    """Let the stream be table[ids]."""
    width = table.shape[1]
    _embed[(len(stream.x),)](ids, table, stream, WIDTH=width, **options(num_warps=4))


def normed_matmul(
    stream: Stream,
    eps: float,
    weight: Tensor,
    out: Tensor,
    activation: str = "none",
    soon: Tensor | None = None,
) -> None:
    """out = f(norm(stream) weightᵀ), the gain of the norm in the weight.

    With "swiglu" out = silu(norm(stream) W_gateᵀ) · norm(stream) W_upᵀ, and the rows of the two
    weights take turns.
    """
    depth = stream.half.shape[1]
    num_weights = 2 if activation == "swiglu" else 1
    # Tall tiles of so deep inputs take too many registers.
    may_be_low = activation == "none" and depth > 512
    tiles = _tiles(*out.shape, depth, 2 * TILE.value // num_weights, num_weights, may_be_low)
    _launch(tiles, stream.half, weight, out, stream, None, eps, soon, activation)


def add_matmul(
    inputs: Tensor,
    weight: Tensor,
    stream: Stream,
    gain: Tensor | None = None,
    soon: Tensor | None = None,
) -> None:
    """Add inputs weightᵀ to the stream.

    gain: of the next norm, if it is not part of the weight that comes after.
    """
    # The squares of a tile are added up in an order that may depend on its width. There are few
    # such tiles, which is why they may be low.
    tiles = _tiles(*stream.x.shape, inputs.shape[1], TILE.value, may_be_low=True)
    _launch(tiles, inputs, weight, stream.x, stream, gain, 0.0, soon, "add")


def with_gain(weight: Tensor, gain: Tensor) -> Tensor:
    """weight · gain, for inputs that are not multiplied by it."""
    return (weight.float() * gain.float()).to(weight.dtype)


def _launch(
    tiles: tuple[tuple[int, int], dict[str, Any]],
    inputs: Tensor,
    weight: Tensor,
    out: Tensor,
    stream: Stream,
    gain: Tensor | None,
    eps: float,
    soon: Tensor | None,
    epilogue: str,
) -> None:
    grid, sizes = tiles
    _matmul[grid](
        inputs,
        weight,
        out,
        stream,
        weight if gain is None else gain,
        weight if soon is None else soon,
        *out.shape,
        eps,
        0 if soon is None else min(soon.nbytes, MAX_SOON_BYTES),
        EPILOGUE=_EPILOGUES[epilogue],
        GAIN=gain is not None,
        **sizes,
    )


def _tiles(
    num_rows: int,
    num_columns: int,
    depth: int,
    most_columns: int,
    num_weights: int = 1,
    may_be_low: bool = False,
) -> tuple[tuple[int, int], dict[str, Any]]:
    """The grid of a matmul, and its tiles: the narrowest with which all programs run at once, large
    ones for prompts."""
    rows = min(max(triton.next_power_of_2(num_rows), _FEWEST_ROWS), _MOST_ROWS)
    columns = TILE.value
    parts = 4 if depth <= 1024 else 8
    # What is read ahead are whole spans.
    span = parts * _PART.value
    padded = triton.cdiv(depth, span) * span
    room = shared_memory_bytes() - _SPARE_BYTES
    if may_be_low and num_rows > _LOW_ROWS:
        num_low = triton.cdiv(num_columns, columns) * triton.cdiv(num_rows, _LOW_ROWS)
        at_once = room // (2 * (columns + _LOW_ROWS) * padded)
        if num_low <= _NUM_PROGRAMS * at_once:
            rows = _LOW_ROWS
    # The sum over parts goes through the shared memory.
    sum_bytes = 4 * parts * _PROMPT_TILE[0] * _PROMPT_TILE[1]
    is_prompt = num_rows >= _PROMPT_ROWS and sum_bytes <= room
    step = _PROMPT_STEP if is_prompt else _PART.value
    if is_prompt:
        rows = _PROMPT_TILE[0]
        if most_columns * num_weights > TILE.value:
            columns = most_columns = _PROMPT_TILE[1] // num_weights
    row_tiles = triton.cdiv(num_rows, rows)
    while columns < most_columns and triton.cdiv(num_columns, columns) * row_tiles > _NUM_PROGRAMS:
        columns *= 2
    # All inputs at once where they fit into the registers; all weights ahead where both fit into
    # the shared memory.
    together = rows * depth <= 32 * 1024
    num_bytes = 2 * (columns * num_weights + rows * together) * padded
    num_bytes += 0 if together else 2 * span * rows
    ahead = num_bytes <= room and not is_prompt
    fits_twice = 2 * 2 * parts * step * (columns * num_weights + rows) <= room
    tiles = {
        "DEPTH": depth,
        "ROWS": rows,
        "COLUMNS": columns,
        "PARTS": parts,
        "STEP": step,
        "TOGETHER": together and ahead,
        "AHEAD": ahead,
        **options(num_warps=parts, num_stages=1 if ahead else 3 if fits_twice else 2),
    }
    return (triton.cdiv(num_columns, columns), row_tiles), tiles


@triton.jit
def _embed(ids, table, stream, WIDTH: tl.constexpr, EARLY: tl.constexpr):
    wait(EARLY)
    begin(EARLY)
    row = tl.program_id(0)
    id = tl.load(ids + row).to(tl.int64)
    num_tiles: tl.constexpr = triton.cdiv(WIDTH, TILE)
    tile = tl.arange(0, triton.next_power_of_2(num_tiles))
    column = tile[:, None] * TILE + tl.arange(0, TILE)[None, :]
    fits = column < WIDTH
    value = tl.load(table + id * WIDTH + column, mask=fits, other=0.0).to(tl.float32)
    offset = row * WIDTH + column
    tl.store(stream.x + offset, value, mask=fits)
    tl.store(stream.half + offset, value.to(stream.half.dtype.element_ty), mask=fits)
    sums = tl.sum(value * value, axis=1)
    tl.store(stream.squares + row * num_tiles + tile, sums, mask=tile < num_tiles)


@triton.jit
def row_scale(squares, row, num_rows, eps, DEPTH: tl.constexpr):
    """What the norm multiplies each row by, so that it can wait until after the matmul."""
    # In float64, where so few numbers have the same sum in any order.
    num_tiles: tl.constexpr = triton.cdiv(DEPTH, TILE)
    index = tl.arange(0, triton.next_power_of_2(num_tiles))[:, None]
    fits = (index < num_tiles) & (row < num_rows)[None, :]
    sums = tl.load(squares + row[None, :] * num_tiles + index, mask=fits, other=0.0)
    mean = (tl.sum(sums.to(tl.float64), axis=0) / DEPTH).to(tl.float32)
    return tl.rsqrt(mean + eps)


@triton.jit
def _load_weights(
    weight, out_column, start, num_columns,
    DEPTH: tl.constexpr, PARTS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """A tile of the weight, (parts, columns, step)."""
    part = start + tl.arange(0, PARTS) * _PART
    column = part[:, None, None] + tl.arange(0, STEP)[None, None, :]
    fits = (column < DEPTH) & (out_column < num_columns)[None, :, None]
    offset = out_column.to(tl.int64)[None, :, None] * DEPTH + column
    return tl.load(weight + offset, mask=fits, other=0.0)


@triton.jit
def _load_inputs(
    inputs, row, start, num_rows, DEPTH: tl.constexpr, PARTS: tl.constexpr, STEP: tl.constexpr
):
    """A tile of inputsᵀ, (parts, step, rows)."""
    part = start + tl.arange(0, PARTS) * _PART
    column = part[:, None, None] + tl.arange(0, STEP)[None, :, None]
    fits = (column < DEPTH) & (row < num_rows)[None, None, :]
    return tl.load(inputs + row[None, None, :] * DEPTH + column, mask=fits, other=0.0)


@triton.jit(do_not_specialize=["num_rows"])
def _matmul(
    inputs, weight, out, stream, gain, soon, num_rows, width, eps, soon_bytes,
    EPILOGUE: tl.constexpr, GAIN: tl.constexpr, DEPTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr, STEP: tl.constexpr,
    TOGETHER: tl.constexpr, AHEAD: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """weight inputsᵀ, (columns, rows): each part of the depth by itself, then their sum; and the
    epilogue."""
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    out_column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    fits = (row < num_rows)[None, :] & (out_column < width)[:, None]
    offset = row[None, :] * width + out_column[:, None]
    # Columns of the weight: two for each result if it is gated.
    each: tl.constexpr = 2 if EPILOGUE == 0 else 1
    column = tl.program_id(0) * COLUMNS * each + tl.arange(0, COLUMNS * each)
    span: tl.constexpr = PARTS * _PART
    tiles = ()
    if AHEAD:
        for start in tl.static_range(0, DEPTH, span):
            tile = _load_weights(weight, column, start, width * each, DEPTH, PARTS, _PART)
            tiles = tiles + (tile,)  # type: ignore[assignment]  # noqa: RUF005
    prefetch(soon, soon_bytes, EARLY)
    wait(EARLY)
    begin(EARLY)
    values = ()
    if TOGETHER:
        for start in tl.static_range(0, DEPTH, span):
            value = _load_inputs(inputs, row, start, num_rows, DEPTH, PARTS, _PART)
            values = values + (value,)  # type: ignore[assignment]  # noqa: RUF005
    if EPILOGUE == _ADD:
        x = tl.load(stream.x + offset, mask=fits, other=0.0)
    else:
        scale = row_scale(stream.squares, row, num_rows, eps, DEPTH)[None, :]
    total = tl.zeros((PARTS, COLUMNS * each, ROWS), dtype=tl.float32)
    num_spans: tl.constexpr = triton.cdiv(DEPTH, span)
    if AHEAD:
        for index in tl.static_range(num_spans):
            if TOGETHER:
                value = values[index]
            else:
                value = _load_inputs(inputs, row, index * span, num_rows, DEPTH, PARTS, _PART)
            total = tl.dot(tiles[index], value, total)
    else:
        steps: tl.constexpr = _PART // STEP
        for index in range(num_spans * steps):
            start = index // steps * span + index % steps * STEP
            tile = _load_weights(weight, column, start, width * each, DEPTH, PARTS, STEP)
            value = _load_inputs(inputs, row, start, num_rows, DEPTH, PARTS, STEP)
            total = tl.dot(tile, value, total)
    result = tl.sum(total, axis=0)
    if EPILOGUE == _ADD:
        result = x + result
        tl.store(stream.x + offset, result, mask=fits)
        squares = stream.squares + row * tl.num_programs(0) + tl.program_id(0)
        tl.store(squares, tl.sum(result * result, axis=0), mask=row < num_rows)
        if GAIN:
            factor = tl.load(gain + out_column, mask=out_column < width, other=0.0)
            result *= factor.to(tl.float32)[:, None]
        tl.store(stream.half + offset, result.to(stream.half.dtype.element_ty), mask=fits)
    else:
        result = scale * result
        if EPILOGUE == 0:
            pairs = tl.permute(tl.reshape(result, (COLUMNS, 2, ROWS)), (0, 2, 1))
            gate, result = tl.split(pairs)
            result *= gate / (1.0 + tl.exp(-gate))
        elif EPILOGUE == 1:
            result = result / (1.0 + tl.exp(-result))
        elif EPILOGUE == 2:
            result = 0.5 * result * (1.0 + tl.erf(result * 0.7071067811865476))
        elif EPILOGUE == 3:
            result = tl.maximum(result, 0.0)
            result *= result
        tl.store(out + offset, result.to(out.dtype.element_ty), mask=fits)
