"""Float8 matmuls for training, on CUDA from Hopper on.

In training, y = x Wᵀ and dx = dy W are computed from operands rounded to float8 (e4m3: three
mantissa bits, maximum 448). dW = dyᵀ x stays in bfloat16.

The output of a norm is at most √d_model times its gain, and weights are small, so both are scaled
by a fixed factor; larger values are clipped. Other inputs and gradients are scaled per row, by
their largest value.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from groundup.nn import kernels

# Scales: inputs up to 224 and weights up to 14 are not clipped. Values are subnormal below 1/128
# and 1/2048, far below the usual magnitude of either.
INPUT_FACTOR, WEIGHT_FACTOR = 2.0, 32.0
LARGEST = 448.0
MULTIPLE = 16
"""All matrix dimensions must be multiples of this."""
# Reading a matrix and writing its rounded copy takes as long as float8 saves in a matmul with about
# 600 columns (H200, 2026-11).
_MIN_COLUMNS = 640


class Rounded(NamedTuple):
    """scale · values, with values in float8 and one scale for the tensor or one per row."""

    values: Tensor
    scale: Tensor


def unsupported_reason(device: torch.device) -> str | None:
    """Why this GPU has no float8 matmul, or None if it has; tries a small one."""
    small = torch.zeros(MULTIPLE, MULTIPLE, device=device).to(torch.float8_e4m3fn)
    try:
        matmul(Rounded(small, torch.ones(MULTIPLE, 1, device=device)), small)
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return None


def is_supported(x: Tensor, num_columns: int) -> bool:
    """Whether the matmul of x and a weight with `num_columns` rows can run in float8."""
    sizes = (x.numel() // x.shape[-1], x.shape[-1], num_columns)
    is_half = x.is_cuda and x.dtype == torch.bfloat16
    return is_half and not any(size % MULTIPLE for size in sizes)


def linear(x: Tensor, weight: Tensor, is_normalized: bool) -> Tensor:
    """x Wᵀ in float8; `is_normalized` if x is the output of a norm."""
    y: Tensor = _Linear.apply(x, weight.to(x.dtype), is_normalized)  # type: ignore[no-untyped-call]
    return y


def rounded(x: Tensor, factor: float) -> Rounded:
    """Round factor · x to float8, row-major."""
    x = x.contiguous()
    values = (x * factor).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return Rounded(values, torch.full((), 1 / factor, device=x.device))


def rounded_rows(x: Tensor) -> Rounded:
    """Round x to float8, with each row scaled by its largest value."""
    if x.is_cuda:
        return Rounded(*kernels.rounding.rounded_rows(x))
    wide = x.float()
    scale = wide.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30) / LARGEST
    values = (wide / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return Rounded(values, scale)


def matmul(
    left: Rounded, right: Tensor, is_precise: bool = False, out: Tensor | None = None
) -> Tensor:
    """left rightᵀ in bfloat16; `right` is a weight in float8, scaled by WEIGHT_FACTOR.

    is_precise: accumulate fully in float32; up to 10% slower.
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
    """x Wᵀ, in float8 if that is worth a separate pass that rounds x."""
    if len(weight) < _MIN_COLUMNS:
        return rows @ weight.T
    return matmul(rounded_rows(rows), rounded(weight, WEIGHT_FACTOR).values, is_precise)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, is_normalized: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        rows = x.flatten(0, -2)
        if is_normalized:
            small = rounded(weight, WEIGHT_FACTOR).values
            y = matmul(rounded(rows, INPUT_FACTOR), small)
        else:
            y = _times(rows, weight)
        return y.view(*x.shape[:-1], len(weight))

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        d_rows = d_y.flatten(0, -2)
        d_x = _times(d_rows, weight.T, is_precise=True)
        return d_x.view_as(x), d_rows.T @ x.flatten(0, -2), None
