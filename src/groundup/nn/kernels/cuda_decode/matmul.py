"""Matmuls of a few rows with a weight, one kernel with several epilogues, for decoding on CUDA.

The result of a row depends on that row alone: the depth is summed in the same order whatever the
number of rows, so a text does not depend on what else is being generated. The depth is split into
spans of `PARTS` parts, and a warp processes the same part of all spans. x stays in float32, with a
half-precision copy for the matmuls; the norms' gains are folded into the weights. With so few rows,
reading the weights is all the work, and waiting for the previous launch is most of the time: so a
launch begins early, reads its weights, prefetches those of a later launch (`soon`), and only then
waits (`launch`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from groundup.nn.kernels.cuda_decode.launch import MAX_SOON_BYTES, options, prefetch, wait

# Rows per tile. The split of the depth into parts and spans must not depend on the number of rows.
# Tensor cores process at least eight rows.
_FEWEST_ROWS, _LOW_ROWS, _MOST_ROWS = 8, 16, 32
_PART = tl.constexpr(64)
# From this many rows on (prompts), there are enough programs for large tiles. They read half a part
# at a time, so that two programs fit on a multiprocessor if rows have at most 1,024 values.
_PROMPT_ROWS, _PROMPT_TILE, _PROMPT_STEP = 256, (64, 64), 32
# About the number of multiprocessors of the target GPUs.
_NUM_PROGRAMS = 144
# Shared memory of a program in addition to the tiles it reads ahead.
_SPARE_BYTES = 2 << 10
# Columns of the narrowest tiles, and of those of the output layer.
TILE, LOGITS_TILE = tl.constexpr(16), tl.constexpr(64)


class Buffers(NamedTuple):
    """Activations passed between the kernels, one row per token."""

    x: Tensor
    """The residual stream in float32."""
    half: Tensor
    """x in half precision, for the matmuls; after the last block multiplied by the norm's gain."""
    squares: Tensor
    """The sum of squares of every 16 columns of x, for the norms."""
    packed: Tensor
    mixed: Tensor
    inner: Tensor
    logits: Tensor
    tops: Tensor
    """The largest logit of every 64 columns after the repetition penalty; +inf if one is NaN."""
    masses: Tensor
    """The sum of the weights of these columns, where the largest logit has weight 1."""
    tiles: Tensor
    """A list of such tiles."""

    @classmethod
    def make(cls, num_rows: int, weights: Sequence[Tensor], num_logits: int = 0) -> Buffers:
        """Allocate buffers for blocks with these weights."""
        packed, _, _, down = weights
        d_model, d_ff = down.shape
        num_tops = triton.cdiv(num_logits, LOGITS_TILE.value)
        wide = d_model, triton.cdiv(d_model, TILE.value), num_logits, num_tops, num_tops
        x, squares, *scores = (torch.empty(num_rows, n, device=down.device) for n in wide)
        narrow = d_model, len(packed), d_model, d_ff
        half, *rest = (down.new_empty(num_rows, n) for n in narrow)
        return cls._make([x, half, squares, *rest, *scores, scores[-1].int()])

    def rows(self, n: int) -> Buffers:
        """The buffers of the first n tokens."""
        return Buffers(*(part[:n] for part in self))


def embed(ids: Tensor, table: Tensor, stream: Buffers) -> None:
    """Set the residual stream to table[ids]."""
    width = table.shape[1]
    _embed[(len(stream.x),)](ids, table, stream, WIDTH=width, **options(num_warps=4))


def multiply(
    inputs: Tensor,
    weight: Tensor,
    stream: Buffers,
    epilogue: str,
    out: Tensor | None = None,
    *,
    gain: Tensor | None = None,
    eps: float = 0.0,
    soon: Tensor | None = None,
) -> None:
    """With epilogue "add", stream += inputs weightᵀ; with any other, out = f(norm(stream) weightᵀ),
    where the weight contains the gain of the norm. For "swiglu", rows of gate and up alternate in
    the weight.

    gain: of the next norm, if the weight after it does not contain it.
    """
    out = stream.x if out is None else out
    num_rows, num_columns = out.shape
    grid, sizes = _tiles(num_rows, num_columns, inputs.shape[1], epilogue)
    gains, later = (weight if one is None else one for one in (gain, soon))
    soon_bytes = 0 if soon is None else min(soon.nbytes, MAX_SOON_BYTES)
    tensors = (inputs, weight, out, stream, gains, later)
    # Not for the projections: attention, the launch after them, reads the cache before it waits.
    at_once = num_rows <= _FEWEST_ROWS and epilogue != "none"
    sizes |= {"EPILOGUE": epilogue, "GAIN": gain is not None, "AT_ONCE": at_once}
    _multiply[grid](*tensors, num_rows, num_columns, eps, soon_bytes, **sizes)


def _tiles(
    num_rows: int, num_columns: int, depth: int, epilogue: str
) -> tuple[tuple[int, int], dict[str, Any]]:
    """Return the grid and tiles of a matmul: the narrowest tiles with which all programs run at
    once, and large ones for prompts."""
    num_weights = 2 if epilogue == "swiglu" else 1
    most_columns = TILE.value if epilogue == "add" else 2 * TILE.value // num_weights
    rows = min(max(triton.next_power_of_2(num_rows), _FEWEST_ROWS), _MOST_ROWS)
    columns = TILE.value
    parts = 4 if depth <= 1024 else 8
    # Whole spans are read ahead.
    span = parts * _PART.value
    padded = triton.cdiv(depth, span) * span
    # 227 KB on an H100, 99 on most small GPUs.
    properties: Any = torch.cuda.get_device_properties()
    room = properties.shared_memory_per_block_optin - _SPARE_BYTES
    if epilogue == "add" and num_rows > _LOW_ROWS:
        num_low = triton.cdiv(num_columns, columns) * triton.cdiv(num_rows, _LOW_ROWS)
        at_once = room // (2 * (columns + _LOW_ROWS) * padded)
        if num_low <= _NUM_PROGRAMS * at_once:
            rows = _LOW_ROWS
    # The sum over parts uses shared memory.
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
    # Read all inputs at once if they fit into registers, and all weights ahead if both fit into
    # shared memory.
    together = rows * depth <= 32 * 1024
    num_bytes = 2 * (columns * num_weights + rows * together) * padded
    num_bytes += 0 if together else 2 * span * rows
    ahead = num_bytes <= room and not is_prompt
    fits_twice = 2 * 2 * parts * step * (columns * num_weights + rows) <= room
    tiles = {"DEPTH": depth, "ROWS": rows, "COLUMNS": columns, "PARTS": parts, "STEP": step}
    tiles |= {"TOGETHER": together and ahead, "AHEAD": ahead}
    tiles |= options(num_warps=parts, num_stages=1 if ahead else 3 if fits_twice else 2)
    return (triton.cdiv(num_columns, columns), row_tiles), tiles


@triton.jit
def _embed(ids, table, stream, WIDTH: tl.constexpr, EARLY: tl.constexpr):
    wait(EARLY)
    row = tl.program_id(0)
    embed_row(tl.load(ids + row), table, stream, row, WIDTH)


@triton.jit
def embed_row(id, table, stream, row, WIDTH: tl.constexpr):
    """Set a row of the stream to the embedding of an id."""
    num_tiles: tl.constexpr = triton.cdiv(WIDTH, TILE)
    tile = tl.arange(0, triton.next_power_of_2(num_tiles))
    column = tile[:, None] * TILE + tl.arange(0, TILE)[None, :]
    fits = column < WIDTH
    entry = table + id.to(tl.int64) * WIDTH + column
    value = tl.load(entry, mask=fits, other=0.0).to(tl.float32)
    offset = row * WIDTH + column
    tl.store(stream.x + offset, value, mask=fits)
    tl.store(stream.half + offset, value.to(stream.half.dtype.element_ty), mask=fits)
    sums = tl.sum(value * value, axis=1)
    tl.store(stream.squares + row * num_tiles + tile, sums, mask=tile < num_tiles)


@triton.jit
def sum_exactly(values):
    """Sum over the first axis in float64, where so few numbers have the same sum in any order."""
    return tl.sum(values.to(tl.float64), axis=0).to(tl.float32)


@triton.jit
def sums_of_squares(squares, row, num_rows, DEPTH: tl.constexpr):
    num_tiles: tl.constexpr = triton.cdiv(DEPTH, TILE)
    index = tl.arange(0, triton.next_power_of_2(num_tiles))[:, None]
    fits = (index < num_tiles) & (row < num_rows)[None, :]
    return tl.load(squares + row[None, :] * num_tiles + index, mask=fits, other=0.0)


@triton.jit
def row_scale(sums, eps, DEPTH: tl.constexpr):
    """The factor of the norm on each row, which can be applied after the matmul."""
    return tl.rsqrt(sum_exactly(sums) * (1.0 / DEPTH) + eps)


@triton.jit
def load(matrix, row, column, num_rows, DEPTH: tl.constexpr):
    fits = (column < DEPTH) & (row < num_rows)
    return tl.load(matrix + row * DEPTH + column, mask=fits, other=0.0)


@triton.jit
def _together(tiles, NUM: tl.constexpr):
    """Return the tiles, with all loads issued before waiting for the first: loads cannot move below
    the barrier, and uses of a tile cannot move above the opaque move instruction."""
    held = ()
    if NUM > 0:
        tl.debug_barrier()
    for index in tl.static_range(NUM):
        tile = tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [tiles[index]], tiles[index].dtype, is_pure=False, pack=2
        )
        held = held + (tile,)  # type: ignore[assignment]  # noqa: RUF005
    return held


@triton.jit
def _sum_of_parts(total, COLUMNS: tl.constexpr, ROWS: tl.constexpr, HALVES: tl.constexpr):
    """Sum over the first axis with a single exchange through shared memory."""
    total = tl.permute(total, (1, 2, 0))
    for power in tl.static_range(HALVES):
        pairs = tl.reshape(total, (COLUMNS, ROWS, 1 << (HALVES - 1 - power), 2))
        left, right = tl.split(pairs)
        total = left + right
    return tl.reshape(total, (COLUMNS, ROWS))


@triton.jit(do_not_specialize=["num_rows"])
def _multiply(
    inputs, weight, out, stream, gain, soon, num_rows, width, eps, soon_bytes,
    EPILOGUE: tl.constexpr, GAIN: tl.constexpr, AT_ONCE: tl.constexpr, DEPTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr, STEP: tl.constexpr,
    TOGETHER: tl.constexpr, AHEAD: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """weight inputsᵀ, (columns, rows): each part of the depth separately, then their sum, and the
    epilogue."""
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    out_column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    fits = (row < num_rows)[None, :] & (out_column < width)[:, None]
    offset = row[None, :] * width + out_column[:, None]
    # Columns of the weight: two for each result if it is gated.
    each: tl.constexpr = 2 if EPILOGUE == "swiglu" else 1
    column = tl.program_id(0) * COLUMNS * each + tl.arange(0, COLUMNS * each)
    span: tl.constexpr = PARTS * _PART
    # Tiles of the weight are (parts, columns, step), those of inputsᵀ (parts, step, rows).
    part = tl.arange(0, PARTS) * _PART
    of_weight = part[:, None, None] + tl.arange(0, STEP)[None, None, :]
    of_input = part[:, None, None] + tl.arange(0, STEP)[None, :, None]
    line, input_row = column.to(tl.int64)[None, :, None], row[None, None, :]
    num_spans: tl.constexpr = triton.cdiv(DEPTH, span)
    num_ahead: tl.constexpr = num_spans if AHEAD else 0
    num_together: tl.constexpr = num_spans if TOGETHER else 0
    tiles, values = (), ()
    for index in tl.static_range(num_ahead):
        tile = load(weight, line, index * span + of_weight, width * each, DEPTH)
        tiles = tiles + (tile,)  # type: ignore[assignment]  # noqa: RUF005
    num_programs = tl.num_programs(0) * tl.num_programs(1)
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    prefetch(soon, program + num_programs * tl.arange(0, 128), soon_bytes, EARLY)
    tiles = _together(tiles, num_ahead)
    wait(EARLY, AT_ONCE)
    for index in tl.static_range(num_together):
        value = load(inputs, input_row, index * span + of_input, num_rows, DEPTH)
        values = values + (value,)  # type: ignore[assignment]  # noqa: RUF005
    if EPILOGUE == "add":
        x = tl.load(stream.x + offset, mask=fits, other=0.0)
    else:
        sums = sums_of_squares(stream.squares, row, num_rows, DEPTH)
    values = _together(values, num_together)
    total = tl.zeros((PARTS, COLUMNS * each, ROWS), dtype=tl.float32)
    if AHEAD:
        for index in tl.static_range(num_spans):
            # If not all inputs were loaded above, load the next ones during this matmul.
            for later in tl.static_range(len(values), min(index + 2, num_spans)):
                value = load(inputs, input_row, later * span + of_input, num_rows, DEPTH)
                values = values + (value,)  # noqa: RUF005
            total = tl.dot(tiles[index], values[index], total)
            if EPILOGUE != "add" and index == 0:
                # Overlaps with the matmul.
                scale = row_scale(sums, eps, DEPTH)
    else:
        steps: tl.constexpr = _PART // STEP
        for index in range(num_spans * steps):
            start = index // steps * span + index % steps * STEP
            tile = load(weight, line, start + of_weight, width * each, DEPTH)
            value = load(inputs, input_row, start + of_input, num_rows, DEPTH)
            total = tl.dot(tile, value, total)
    result = _sum_of_parts(total, COLUMNS * each, ROWS, 2 if PARTS == 4 else 3)
    if EPILOGUE == "add":
        result = x + result
        tl.store(stream.x + offset, result, mask=fits)
        squares = stream.squares + row * tl.num_programs(0) + tl.program_id(0)
        tl.store(squares, sum_exactly(result * result), mask=row < num_rows)
        if GAIN:
            factor = tl.load(gain + out_column, mask=out_column < width, other=0.0)
            result *= factor.to(tl.float32)[:, None]
        tl.store(stream.half + offset, result.to(stream.half.dtype.element_ty), mask=fits)
    else:
        if not AHEAD:
            scale = row_scale(sums, eps, DEPTH)
        result *= scale[None, :]
        if EPILOGUE == "swiglu":
            pairs = tl.permute(tl.reshape(result, (COLUMNS, 2, ROWS)), (0, 2, 1))
            gate, result = tl.split(pairs)
            result *= gate / (1.0 + tl.exp(-gate))
        elif EPILOGUE == "silu":
            result = result / (1.0 + tl.exp(-result))
        elif EPILOGUE == "gelu":
            result = 0.5 * result * (1.0 + tl.erf(result * 0.7071067811865476))
        elif EPILOGUE == "relu2":
            result = tl.maximum(result, 0.0)
            result *= result
        tl.store(out + offset, result.to(out.dtype.element_ty), mask=fits)
