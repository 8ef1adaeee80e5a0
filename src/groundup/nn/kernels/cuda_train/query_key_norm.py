"""The norm of queries and keys on packed projections and its gradient, a pass over memory each."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Rows whose shares of the gains' gradients one program adds up.
_ROWS = 16


@torch.library.custom_op("groundup::packed_query_key_norm", mutates_args=())
def packed_query_key_norm(
    packed: Tensor, query_gain: Tensor, key_gain: Tensor, eps: float
) -> Tensor:
    """Queries, keys and values side by side, (…, 3 · d_model): each head of the first two
    normalized, x / √(mean(x²) + eps) · gain, the values as they are.

    query_gain, key_gain: (d_head,), with d_head a power of two.
    """
    d_model, d_head = packed.shape[-1] // 3, len(query_gain)
    out = torch.empty_like(packed)
    _normalize[(packed.numel() // (3 * d_model), 3)](
        packed,
        query_gain,
        key_gain,
        out,
        eps,
        D_MODEL=d_model,
        BLOCK=triton.next_power_of_2(d_model),
        D_HEAD=d_head,
        num_warps=4,
    )
    return out


@packed_query_key_norm.register_fake
def _(packed: Tensor, query_gain: Tensor, key_gain: Tensor, eps: float) -> Tensor:
    return torch.empty_like(packed)


@torch.library.custom_op("groundup::packed_query_key_norm_backward", mutates_args=())
def packed_query_key_norm_backward(
    d_out: Tensor, packed: Tensor, query_gain: Tensor, key_gain: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the packed projections and of both gains."""
    d_out = d_out.contiguous()
    d_model, d_head = packed.shape[-1] // 3, len(query_gain)
    num_rows = packed.numel() // (3 * d_model)
    num_programs = triton.cdiv(num_rows, _ROWS)
    d_packed = torch.empty_like(packed)
    parts = packed.new_empty((2, num_programs, d_head), dtype=torch.float32)
    _normalize_backward[(num_programs, 3)](
        packed,
        query_gain,
        key_gain,
        d_out,
        d_packed,
        parts,
        eps,
        num_rows,
        num_programs,
        D_MODEL=d_model,
        BLOCK=triton.next_power_of_2(d_model),
        D_HEAD=d_head,
        ROWS=_ROWS,
        num_warps=4,
    )
    d_gains = parts.sum(dim=1).to(query_gain.dtype)
    return d_packed, d_gains[0].clone(), d_gains[1].clone()


@packed_query_key_norm_backward.register_fake
def _(
    d_out: Tensor, packed: Tensor, query_gain: Tensor, key_gain: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(packed), torch.empty_like(query_gain), torch.empty_like(key_gain)


def _remember(ctx, inputs, output):
    packed, query_gain, key_gain, ctx.eps = inputs
    ctx.save_for_backward(packed, query_gain, key_gain)


def _backward(ctx, d_out):
    return *packed_query_key_norm_backward(d_out, *ctx.saved_tensors, ctx.eps), None


packed_query_key_norm.register_autograd(_backward, setup_context=_remember)


@triton.jit
def _load_heads(start, BLOCK: tl.constexpr, D_MODEL: tl.constexpr, D_HEAD: tl.constexpr):
    """One row of one part as (heads, d_head), in float32; heads beyond the last are zero."""
    column = tl.arange(0, BLOCK)
    x = tl.load(start + column, mask=column < D_MODEL, other=0.0).to(tl.float32)
    return tl.reshape(x, (BLOCK // D_HEAD, D_HEAD))


@triton.jit
def _normalize(
    packed,
    query_gain,
    key_gain,
    out,
    eps,
    D_MODEL: tl.constexpr,
    BLOCK: tl.constexpr,
    D_HEAD: tl.constexpr,
):
    part = tl.program_id(1)
    start = tl.program_id(0).to(tl.int64) * (3 * D_MODEL) + part * D_MODEL
    x = _load_heads(packed + start, BLOCK, D_MODEL, D_HEAD)
    if part < 2:
        dim = tl.arange(0, D_HEAD)
        gain = tl.where(part == 0, tl.load(query_gain + dim), tl.load(key_gain + dim))
        scale = tl.rsqrt(tl.sum(x * x, axis=1) / D_HEAD + eps)
        x = x * scale[:, None] * gain.to(tl.float32)[None, :]
    column = tl.arange(0, BLOCK)
    tl.store(out + start + column, tl.reshape(x, (BLOCK,)), mask=column < D_MODEL)


@triton.jit
def _normalize_backward(
    packed,
    query_gain,
    key_gain,
    d_out,
    d_packed,
    parts,
    eps,
    num_rows,
    num_programs,
    D_MODEL: tl.constexpr,
    BLOCK: tl.constexpr,
    D_HEAD: tl.constexpr,
    ROWS: tl.constexpr,
):
    """With n = x / √(mean(x²) + eps) and y = n · gain:

    dx = (dy · gain - n · mean(dy · gain · n)) / √(mean(x²) + eps);   dgain = Σ dy · n
    """
    program, part = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, BLOCK)
    dim = tl.arange(0, D_HEAD)
    gain = tl.where(part == 0, tl.load(query_gain + dim), tl.load(key_gain + dim))
    gain = gain.to(tl.float32)[None, :]
    d_gain = tl.zeros((D_HEAD,), tl.float32)
    for index in range(ROWS):
        row = program * ROWS + index
        if row < num_rows:
            start = row.to(tl.int64) * (3 * D_MODEL) + part * D_MODEL
            dy = _load_heads(d_out + start, BLOCK, D_MODEL, D_HEAD)
            if part < 2:
                x = _load_heads(packed + start, BLOCK, D_MODEL, D_HEAD)
                scale = tl.rsqrt(tl.sum(x * x, axis=1) / D_HEAD + eps)[:, None]
                n = x * scale
                d_gain += tl.sum(dy * n, axis=0)
                dy = dy * gain
                dy = (dy - n * (tl.sum(dy * n, axis=1) / D_HEAD)[:, None]) * scale
            target = d_packed + start + column
            tl.store(target, tl.reshape(dy, (BLOCK,)), mask=column < D_MODEL)
    if part < 2:
        tl.store(parts + (part * num_programs + program) * D_HEAD + dim, d_gain)
