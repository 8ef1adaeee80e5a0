"""One token a row through a Transformer block, for generating on CUDA in half precision.

Every row's numbers depend on that row alone: matmuls add up in one order whatever the number of
rows, so a text does not change with what else is being generated. Five launches make a block:

    packed = norm(x) [W_query; W_key; W_value]ᵀ      `normed_matmul`
    mixed  = attention over the row's cache          `attention.attend`
    x     += mixed W_outputᵀ                         `add_matmul`
    inner  = f(norm(x) W_upᵀ), or gated by silu      `inner_matmul`
    x     += inner W_downᵀ                           `add_matmul`

x stays in float32, with a copy in half precision for the matmuls; the norms' gains are part of the
weights. With so few rows reading the weights is all the work, and waiting for the launch before is
most of the time: so a launch begins early, reads its weights, lets those that a later launch reads
be on their way to the cache (`soon`), and only then waits (`launch`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from groundup.nn.kernels.cuda_decode.launch import (
    FEWEST_ROWS,
    MOST_SOON_BYTES,
    begin,
    options,
    prefetch,
    shared_memory_bytes,
    wait,
)
from groundup.nn.kernels.cuda_decode.tiles import all_inputs, all_weights, dot

# How a matmul is split into tiles. Sums run along the depth in an order that must not depend on the
# number of rows, or rows would feel each other in the last digit: how the depth is cut into parts
# and spans is fixed. Each warp has a part.
_LOW_ROWS, _MOST_ROWS = 16, 32
_PART = 64
# So many rows are those of prompts: there are programs enough whatever the tiles, so that these are
# large; and half of a part is read at a time, so that a multiprocessor has room for two programs
# where a row has no more than 1,024 values.
_PROMPT_ROWS, _PROMPT_TILE, _PROMPT_STEP = 256, (64, 64), 32
# About as many programs as the GPUs this is for have multiprocessors.
_NUM_PROGRAMS = 144
# Shared memory that a program needs besides the tiles it reads ahead.
_SPARE_BYTES = 2 << 10
# How the inner layer is activated; 0 is the gate of SwiGLU.
ACTIVATIONS = {"swiglu": 0, "silu": 1, "gelu": 2, "relu2": 3, "none": 4}
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
    first: Tensor
    """What the stream began with, if blocks mix it in."""

    def rows(self, first: int, end: int) -> Stream:
        """Those of some tokens."""
        return Stream(*(part[first:end] for part in self))


def embed(ids: Tensor, table: Tensor, stream: Stream, mix: Tensor | None) -> None:
    """Let the stream be table[ids].

    mix: the factors of the stream and of what it began with that the first block sees; None for
        the stream as it is.
    """
    width = table.shape[1]
    _embed[(len(stream.x),)](
        ids,
        table,
        *stream,
        stream.x if mix is None else mix,
        ids.stride(0),
        WIDTH=width,
        BLOCK=max(triton.next_power_of_2(width), TILE.value),
        MIX=mix is not None,
        **options(num_warps=4),
    )


def normed_matmul(
    stream: Stream, eps: float, weight: Tensor, out: Tensor, soon: Tensor | None = None
) -> None:
    """out = norm(stream) weightᵀ, the gain of the norm in the weight."""
    inner_matmul(stream, eps, weight, out, "none", soon)


def inner_matmul(
    stream: Stream,
    eps: float,
    weight: Tensor,
    out: Tensor,
    kind: str,
    soon: Tensor | None = None,
) -> None:
    """out = f(norm(stream) weightᵀ), the gain of the norm in the weight.

    kind: of `ACTIVATIONS`; with "swiglu" out = silu(norm(stream) W_gateᵀ) · norm(stream) W_upᵀ,
        and the rows of the two weights take turns.
    """
    num_rows, depth = stream.half.shape
    is_gated = kind == "swiglu"
    most_columns = TILE.value if is_gated else 2 * TILE.value
    # Tall tiles of so deep inputs take too many registers.
    may_be_low = kind == "none" and depth > 512
    num_weights = 2 if is_gated else 1
    grid, tiles = _tiles(num_rows, out.shape[1], depth, most_columns, num_weights, may_be_low)
    _inner_matmul[grid](
        stream.half,
        stream.squares,
        weight,
        out,
        weight if soon is None else soon,
        num_rows,
        out.shape[1],
        eps,
        _num_bytes(soon),
        KIND=ACTIVATIONS[kind],
        SQUARES=triton.next_power_of_2(stream.squares.shape[1]),
        **tiles,
    )


def add_matmul(
    inputs: Tensor,
    weight: Tensor,
    stream: Stream,
    mix: Tensor | None = None,
    gain: Tensor | None = None,
    soon: Tensor | None = None,
) -> None:
    """Add inputs weightᵀ to the stream.

    mix: after that, x = mix[0] x + mix[1] first; None leaves it out.
    gain: of the next norm, if it is not part of the weight that comes after.
    """
    num_rows, num_columns = stream.x.shape
    # The squares of a tile are added up in an order that may depend on its width. There are few
    # such tiles, which is why they may be low.
    grid, tiles = _tiles(num_rows, num_columns, inputs.shape[1], TILE.value, may_be_low=True)
    _add_matmul[grid](
        inputs,
        weight,
        *stream,
        stream.x if mix is None else mix,
        stream.x if gain is None else gain,
        weight if soon is None else soon,
        num_rows,
        num_columns,
        _num_bytes(soon),
        MIX=mix is not None,
        GAIN=gain is not None,
        **tiles,
    )


def with_gain(weight: Tensor, gain: Tensor) -> Tensor:
    """weight · gain, for inputs that are not multiplied by it."""
    return (weight.float() * gain.float()).to(weight.dtype)


def _num_bytes(soon: Tensor | None) -> int:
    return 0 if soon is None else min(soon.nbytes, MOST_SOON_BYTES)


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
    rows = min(max(triton.next_power_of_2(num_rows), FEWEST_ROWS), _MOST_ROWS)
    columns = TILE.value
    parts = 4 if depth <= 1024 else 8
    # What is read ahead are whole spans.
    padded = triton.cdiv(depth, parts * _PART) * parts * _PART
    room = shared_memory_bytes() - _SPARE_BYTES
    if may_be_low and num_rows > _LOW_ROWS:
        num_low = triton.cdiv(num_columns, columns) * triton.cdiv(num_rows, _LOW_ROWS)
        at_once = room // (2 * (columns + _LOW_ROWS) * padded)
        if num_low <= _NUM_PROGRAMS * at_once:
            rows = _LOW_ROWS
    # The sum over parts goes through the shared memory.
    sum_bytes = 4 * parts * _PROMPT_TILE[0] * _PROMPT_TILE[1]
    is_prompt = num_rows >= _PROMPT_ROWS and sum_bytes <= room
    step = _PROMPT_STEP if is_prompt else _PART
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
    num_bytes += 0 if together else 2 * parts * _PART * rows
    ahead = num_bytes <= room and not is_prompt
    fits_twice = 2 * 2 * parts * step * (columns * num_weights + rows) <= room
    tiles = {
        "DEPTH": depth,
        "ROWS": rows,
        "COLUMNS": columns,
        "PARTS": parts,
        "PART": _PART,
        "STEP": step,
        "TOGETHER": together and ahead,
        "AHEAD": ahead,
        **options(num_warps=parts, num_stages=1 if ahead else 3 if fits_twice else 2),
    }
    return (triton.cdiv(num_columns, columns), row_tiles), tiles


@triton.jit
def _embed(
    ids,
    table,
    x,
    half,
    squares,
    first,
    mix,
    stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    MIX: tl.constexpr,
    EARLY: tl.constexpr,
):
    wait(EARLY)
    begin(EARLY)
    row = tl.program_id(0)
    id = tl.load(ids + row * stride).to(tl.int64)
    column = tl.arange(0, BLOCK)
    fits = column < WIDTH
    value = tl.load(table + id * WIDTH + column, mask=fits, other=0.0).to(tl.float32)
    offset = row * WIDTH + column
    if MIX:
        tl.store(first + offset, value, mask=fits)
        value *= tl.load(mix).to(tl.float32) + tl.load(mix + 1).to(tl.float32)
    tl.store(x + offset, value, mask=fits)
    tl.store(half + offset, value.to(half.dtype.element_ty), mask=fits)
    num_tiles: tl.constexpr = (WIDTH + TILE - 1) // TILE
    tile = tl.arange(0, BLOCK // TILE)
    sums = tl.sum(tl.reshape(value * value, (BLOCK // TILE, TILE)), axis=1)
    tl.store(squares + row * num_tiles + tile, sums, mask=tile < num_tiles)


@triton.jit
def row_scale(squares, row, num_rows, eps, DEPTH: tl.constexpr, SQUARES: tl.constexpr):
    """What the norm multiplies each row by, so that it can wait until after the matmul."""
    # In float64, where so few numbers have the same sum in any order.
    num_tiles: tl.constexpr = (DEPTH + TILE - 1) // TILE
    index = tl.arange(0, SQUARES)[:, None]
    fits = (index < num_tiles) & (row < num_rows)[None, :]
    sums = tl.load(squares + row[None, :] * num_tiles + index, mask=fits, other=0.0)
    mean = (tl.sum(sums.to(tl.float64), axis=0) / DEPTH).to(tl.float32)
    return tl.rsqrt(mean + eps)


@triton.jit(do_not_specialize=["num_rows"])
def _inner_matmul(
    half,
    squares,
    weight,
    out,
    soon,
    num_rows,
    width,
    eps,
    soon_bytes,
    KIND: tl.constexpr,
    SQUARES: tl.constexpr,
    DEPTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
    STEP: tl.constexpr,
    TOGETHER: tl.constexpr,
    AHEAD: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    out_column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    # Of the weight: two for each result if it is gated.
    each: tl.constexpr = 2 if KIND == 0 else 1
    column = tl.program_id(0) * COLUMNS * each + tl.arange(0, COLUMNS * each)
    tiles = all_weights(weight, column, width * each, DEPTH, PARTS, PART, AHEAD)
    prefetch(soon, soon_bytes, EARLY)
    wait(EARLY)
    begin(EARLY)
    values = all_inputs(half, row, num_rows, DEPTH, PARTS, PART, TOGETHER)
    scale = row_scale(squares, row, num_rows, eps, DEPTH, SQUARES)[None, :]
    result = scale * dot(
        weight, tiles, half, values, column, width * each, row, num_rows,
        DEPTH, ROWS, COLUMNS * each, PARTS, PART, STEP, TOGETHER, AHEAD,
    )  # fmt: skip
    if KIND == 0:
        pairs = tl.permute(tl.reshape(result, (COLUMNS, 2, ROWS)), (0, 2, 1))
        gate, result = tl.split(pairs)
        result *= gate / (1.0 + tl.exp(-gate))
    elif KIND == 1:
        result = result / (1.0 + tl.exp(-result))
    elif KIND == 2:
        result = 0.5 * result * (1.0 + tl.erf(result * 0.7071067811865476))
    elif KIND == 3:
        result = tl.maximum(result, 0.0)
        result *= result
    fits = (row < num_rows)[None, :] & (out_column < width)[:, None]
    offset = row[None, :] * width + out_column[:, None]
    tl.store(out + offset, result.to(out.dtype.element_ty), mask=fits)


@triton.jit(do_not_specialize=["num_rows"])
def _add_matmul(
    inputs,
    weight,
    x,
    half,
    squares,
    first,
    mix,
    gain,
    soon,
    num_rows,
    num_columns,
    soon_bytes,
    MIX: tl.constexpr,
    GAIN: tl.constexpr,
    DEPTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
    STEP: tl.constexpr,
    TOGETHER: tl.constexpr,
    AHEAD: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    out_column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    fits = (row < num_rows)[None, :] & (out_column < num_columns)[:, None]
    offset = row[None, :] * num_columns + out_column[:, None]
    tiles = all_weights(weight, out_column, num_columns, DEPTH, PARTS, PART, AHEAD)
    prefetch(soon, soon_bytes, EARLY)
    wait(EARLY)
    begin(EARLY)
    values = all_inputs(inputs, row, num_rows, DEPTH, PARTS, PART, TOGETHER)
    result = tl.load(x + offset, mask=fits, other=0.0)
    result += dot(
        weight, tiles, inputs, values, out_column, num_columns, row, num_rows,
        DEPTH, ROWS, COLUMNS, PARTS, PART, STEP, TOGETHER, AHEAD,
    )  # fmt: skip
    if MIX:
        result *= tl.load(mix).to(tl.float32)
        embedding = tl.load(first + offset, mask=fits, other=0.0)
        result += tl.load(mix + 1).to(tl.float32) * embedding
    tl.store(x + offset, result, mask=fits)
    sums = tl.sum(result * result, axis=0)
    if GAIN:
        factor = tl.load(gain + out_column, mask=out_column < num_columns, other=0.0)
        result *= factor.to(tl.float32)[:, None]
    tl.store(half + offset, result.to(half.dtype.element_ty), mask=fits)
    tl.store(squares + row * tl.num_programs(0) + tl.program_id(0), sums, mask=row < num_rows)
