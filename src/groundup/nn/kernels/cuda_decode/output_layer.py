"""The logits of one token a row, for generating on CUDA in half precision."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from groundup.nn.kernels.cuda_decode.launch import begin, options, wait
from groundup.nn.kernels.cuda_decode.matmul import Stream, row_scale
from groundup.nn.kernels.cuda_decode.sampling import penalized

_ROWS = tl.constexpr(64)
_COLUMNS = tl.constexpr(64)
_BLOCK = tl.constexpr(64)


class Scores(NamedTuple):
    """What the output layer leaves, a row for each token."""

    logits: Tensor
    tops: Tensor
    """The highest logit of each 64 columns after the repetition penalty; +inf if one is NaN."""

    @classmethod
    def make(cls, num_rows: int, num_columns: int, device: torch.device) -> Scores:
        logits = torch.empty(num_rows, num_columns, device=device)
        return cls(logits, logits.new_empty(num_rows, triton.cdiv(num_columns, _COLUMNS.value)))

    def rows(self, n: int) -> Scores:
        """Those of the first n tokens."""
        return Scores(self.logits[:n], self.tops[:n])


def to_logits(
    stream: Stream,
    norm: tuple[float, float],
    weight: Tensor,
    scores: Scores,
    absent: Tensor | None = None,
    penalty: tuple[Tensor, Tensor] | None = None,
) -> None:
    """logits = norm(stream) weightᵀ, the gain of the norm in the stream.

    The vocabulary is so large that reading its weights is all that counts, so many rows go
    together.

    norm: its eps, and what the gain in the stream is to be multiplied by.
    absent: which ids are not allowed, if any; their logits are -inf.
    penalty: which ids each row holds, and its repetition penalty; the logits stay as they are.
    """
    num_rows, depth = stream.half.shape
    _matmul[(triton.cdiv(len(weight), _COLUMNS.value), triton.cdiv(num_rows, _ROWS.value))](
        stream,
        weight,
        weight if absent is None else absent,
        penalty or (weight, weight),
        scores,
        num_rows,
        len(weight),
        *norm,
        DEPTH=depth,
        GAPS=absent is not None,
        PENALTY=penalty is not None,
        **options(num_warps=4, num_stages=4),
    )


@triton.jit(do_not_specialize=["num_rows"])
def _matmul(
    stream, weight, absent, penalty, scores, num_rows, num_columns, eps, factor,
    DEPTH: tl.constexpr, GAPS: tl.constexpr, PENALTY: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait(EARLY)
    begin(EARLY)
    row = tl.program_id(1) * _ROWS + tl.arange(0, _ROWS)
    out_column = tl.program_id(0) * _COLUMNS + tl.arange(0, _COLUMNS)
    total = tl.zeros((_ROWS, _COLUMNS), dtype=tl.float32)
    for start in range(0, DEPTH, _BLOCK):
        column = start + tl.arange(0, _BLOCK)
        fits = (row < num_rows)[:, None] & (column < DEPTH)[None, :]
        value = tl.load(stream.half + row[:, None] * DEPTH + column[None, :], mask=fits, other=0.0)
        fits = (column < DEPTH)[:, None] & (out_column < num_columns)[None, :]
        offset = out_column.to(tl.int64)[None, :] * DEPTH + column[:, None]
        tile = tl.load(weight + offset, mask=fits, other=0.0)
        total = tl.dot(value, tile, total)
    total *= (factor * row_scale(stream.squares, row, num_rows, eps, DEPTH))[:, None]
    if GAPS:
        is_absent = tl.load(absent + out_column, mask=out_column < num_columns, other=True)
        total = tl.where(is_absent[None, :], float("-inf"), total)
    fits = (row < num_rows)[:, None] & (out_column < num_columns)[None, :]
    offset = row.to(tl.int64)[:, None] * num_columns + out_column[None, :]
    tl.store(scores.logits + offset, total, mask=fits)
    if PENALTY:
        is_seen = tl.load(penalty[0] + offset, mask=fits, other=0) > 0
        penalties = tl.load(penalty[1] + row, mask=row < num_rows, other=1.0)
        total = penalized(total, is_seen, penalties[:, None])
    total = tl.where(fits, tl.where(total == total, total, float("inf")), float("-inf"))
    top = scores.tops + row * tl.num_programs(0) + tl.program_id(0)
    tl.store(top, tl.max(total, axis=1), mask=row < num_rows)
