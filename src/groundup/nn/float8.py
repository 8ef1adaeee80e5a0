"""Matmuls in 8-bit floating point, for CUDA from Hopper on.

While a model learns, y = x Wᵀ and dx = dy W are computed from operands that are rounded to float8
(e4m3: three bits of mantissa, at most 448). dW = dyᵀ x stays in bfloat16.

A norm's output is at most √d_model times its gain, and weights are small: one fixed factor brings
each into the range of float8, and what is larger all the same is cut off. Other rows, and those of
gradients, are divided by their largest value.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from groundup.nn import kernels

# Normalized inputs of up to 224 and weights of up to 14 are not cut off. What is so small that it
# loses bits, below a hundredth and below a two-thousandth, is far below the usual value of either.
INPUT_FACTOR, WEIGHT_FACTOR = 2.0, 32.0
LARGEST = 448.0
MULTIPLE = 16
"""Of which the sizes of all matrices have to be multiples."""
# To read a matrix and to write its rounded copy takes as long as a matmul with about 600 columns
# saves (H200, 2026-11).
_LEAST_COLUMNS = 640


class Rounded(NamedTuple):
    """scale · values, with values in float8 and one scale for all of them or one for each row."""

    values: Tensor
    scale: Tensor


def why_not(device: torch.device) -> str | None:
    """The reason why that GPU has no such matmuls, found by a small one; None if it has."""
    small = torch.zeros(MULTIPLE, MULTIPLE, device=device).to(torch.float8_e4m3fn)
    try:
        matmul(Rounded(small, torch.ones(MULTIPLE, 1, device=device)), small)
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return None


def takes(x: Tensor, num_columns: int) -> bool:
    """Whether x times a weight with so many rows is a matmul that float8 can do."""
    sizes = (x.numel() // x.shape[-1], x.shape[-1], num_columns)
    is_half = x.is_cuda and x.dtype == torch.bfloat16
    return is_half and not any(size % MULTIPLE for size in sizes)


def linear(x: Tensor, weight: Tensor, is_normalized: bool) -> Tensor:
    """x Wᵀ, for an x that a norm returned or any other."""
    y: Tensor = _Linear.apply(x, weight.to(x.dtype), is_normalized)  # type: ignore[no-untyped-call]
    return y


def rounded(x: Tensor, factor: float) -> Rounded:
    """factor · x in float8, row by row in memory."""
    x = x.contiguous()
    values = (x * factor).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return Rounded(values, torch.full((), 1 / factor, device=x.device))


def rounded_rows(x: Tensor) -> Rounded:
    """Each row divided by its largest value."""
    if x.is_cuda:
        return Rounded(*kernels.rounding.rounded_rows(x))
    wide = x.float()
    scale = wide.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30) / LARGEST
    values = (wide / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return Rounded(values, scale)


def matmul(
    left: Rounded, right: Tensor, is_precise: bool = False, out: Tensor | None = None
) -> Tensor:
    """left rightᵀ in bfloat16; `right` is a weight in float8, WEIGHT_FACTOR times itself.

    is_precise: sums are in float32 all the way, not in fewer bits for a while; up to 10% slower.
    """
    shape = (1, len(right)) if left.scale.ndim else ()
    return torch._scaled_mm(
        left.values,
        right.T,
        scale_a=left.scale,
        scale_b=torch.full(shape, 1 / WEIGHT_FACTOR, device=right.device),
        out_dtype=torch.bfloat16,
        use_fast_accum=not is_precise,
        out=out,
    )


def _times(rows: Tensor, weight: Tensor, is_precise: bool = False) -> Tensor:
    """x Wᵀ for an x that is rounded by a pass of its own, if that pays."""
    if len(weight) < _LEAST_COLUMNS:
        return rows @ weight.T
    return matmul(rounded_rows(rows), _weight(weight), is_precise)


def _weight(weight: Tensor) -> Tensor:
    return rounded(weight, WEIGHT_FACTOR).values


def _rows(x: Tensor) -> Tensor:
    return x.flatten(0, -2)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, is_normalized: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        rows = _rows(x)
        if is_normalized:
            y = matmul(rounded(rows, INPUT_FACTOR), _weight(weight))
        else:
            y = _times(rows, weight)
        return y.view(*x.shape[:-1], len(weight))

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        d_rows = _rows(d_y)
        d_x = _times(d_rows, weight.T, is_precise=True)
        return d_x.view_as(x), d_rows.T @ _rows(x), None
