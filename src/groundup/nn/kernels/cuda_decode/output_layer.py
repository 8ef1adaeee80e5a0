"""The logits of one token a row, for generating on CUDA in half precision."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from groundup.nn.kernels.cuda_decode.launch import begin, options, wait


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
        x,
        gain,
        normal,
        eps,
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        **options(num_warps=4),
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
        **options(num_warps=4, num_stages=4),
    )


@triton.jit
def _normalize(x, gain, normal, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    fits = column < WIDTH
    factor = tl.load(gain + column, mask=fits, other=0.0).to(tl.float32)
    wait(EARLY)
    begin(EARLY)
    value = tl.load(x + row * WIDTH + column, mask=fits, other=0.0)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / WIDTH + eps)
    value = value * scale * factor
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
    EARLY: tl.constexpr,
):
    wait(EARLY)
    begin(EARLY)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    out_column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, DEPTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        fits = (row < num_rows)[:, None] & (column < DEPTH)[None, :]
        value = tl.load(inputs + row[:, None] * DEPTH + column[None, :], mask=fits, other=0.0)
        fits = (column < DEPTH)[:, None] & (out_column < num_columns)[None, :]
        offset = out_column.to(tl.int64)[None, :] * DEPTH + column[:, None]
        tile = tl.load(weight + offset, mask=fits, other=0.0)
        total = tl.dot(value, tile, total)
    if soft_cap > 0:
        # tanh(y) = 1 - 2 / (e^(2y) + 1).
        total = soft_cap * (1.0 - 2.0 / (tl.exp(2.0 * total / soft_cap) + 1.0))
    fits = (row < num_rows)[:, None] & (out_column < num_columns)[None, :]
    offset = row.to(tl.int64)[:, None] * num_columns + out_column[None, :]
    tl.store(out + offset, total, mask=fits)
