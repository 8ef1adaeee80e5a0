"""The logits of one token a row, for generating on CUDA in half precision."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from groundup.nn.kernels.cuda_decode.edge_search import NUM_FLOATS, PENALTY, penalized
from groundup.nn.kernels.cuda_decode.launch import begin, options, wait
from groundup.nn.kernels.cuda_decode.matmul import Stream, row_scale

_FLOATS, _PENALTY = tl.constexpr(NUM_FLOATS), tl.constexpr(PENALTY)
_ROWS = 64
_COLUMNS = 64


class Scores(NamedTuple):
    """What the output layer leaves, a row for each token."""

    logits: Tensor
    tops: Tensor
    """The highest logit of each 64 columns; +inf if one is no number."""

    @classmethod
    def make(cls, num_rows: int, num_columns: int, device: torch.device) -> Scores:
        logits = torch.empty(num_rows, num_columns, device=device)
        return cls(logits, logits.new_empty(num_rows, triton.cdiv(num_columns, _COLUMNS)))

    def rows(self, n: int) -> Scores:
        """Those of the first n tokens."""
        return Scores(self.logits[:n], self.tops[:n])


def to_logits(
    stream: Stream,
    norm: tuple[float, float],
    weight: Tensor,
    scores: Scores,
    soft_cap: float | None = None,
    absent: Tensor | None = None,
    penalty: tuple[Tensor, Tensor] | None = None,
) -> None:
    """logits = norm(stream) weightᵀ, the gain of the norm in the stream; soft-capped if a cap is
    given.

    The vocabulary is so large that reading its weights is all that counts, so many rows go
    together.

    norm: its eps, and what the gain in the stream is to be multiplied by.
    absent: which ids cannot be written, if any; their logits are -inf.
    penalty: which ids each row holds, and the rows' state with their repetition penalties, which
        the highest logits are of; the logits themselves stay as they are.
    """
    num_rows, width = stream.half.shape
    eps, factor = norm
    seen, floats = penalty or (weight, weight)
    _matmul[(triton.cdiv(len(weight), _COLUMNS), triton.cdiv(num_rows, _ROWS))](
        stream.half,
        stream.squares,
        weight,
        weight if absent is None else absent,
        seen,
        floats,
        *scores,
        num_rows,
        len(weight),
        eps,
        factor,
        soft_cap or 0.0,
        DEPTH=width,
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
        BLOCK=64,
        SQUARES=triton.next_power_of_2(stream.squares.shape[1]),
        GAPS=absent is not None,
        PENALTY=penalty is not None,
        **options(num_warps=4, num_stages=4),
    )


@triton.jit(do_not_specialize=["num_rows"])
def _matmul(
    inputs,
    squares,
    weight,
    absent,
    seen,
    floats,
    out,
    tops,
    num_rows,
    num_columns,
    eps,
    factor,
    soft_cap,
    DEPTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    SQUARES: tl.constexpr,
    GAPS: tl.constexpr,
    PENALTY: tl.constexpr,
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
    total *= (factor * row_scale(squares, row, num_rows, eps, DEPTH, SQUARES))[:, None]
    if soft_cap > 0:
        # tanh(y) = 1 - 2 / (e^(2y) + 1).
        total = soft_cap * (1.0 - 2.0 / (tl.exp(2.0 * total / soft_cap) + 1.0))
    if GAPS:
        is_absent = tl.load(absent + out_column, mask=out_column < num_columns, other=True)
        total = tl.where(is_absent[None, :], float("-inf"), total)
    fits = (row < num_rows)[:, None] & (out_column < num_columns)[None, :]
    offset = row.to(tl.int64)[:, None] * num_columns + out_column[None, :]
    tl.store(out + offset, total, mask=fits)
    if PENALTY:
        is_seen = tl.load(seen + offset, mask=fits, other=0) > 0
        penalty = tl.load(floats + row * _FLOATS + _PENALTY, mask=row < num_rows, other=1.0)
        total = penalized(total, is_seen, penalty[:, None])
    total = tl.where(fits, tl.where(total == total, total, float("inf")), float("-inf"))
    top = tops + row * tl.num_programs(0) + tl.program_id(0)
    tl.store(top, tl.max(total, axis=1), mask=row < num_rows)
