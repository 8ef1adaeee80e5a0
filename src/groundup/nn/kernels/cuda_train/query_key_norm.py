"""The norm of queries and keys on packed projections and its gradient, a pass over memory each."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Elements, whole heads of them, that one program loads at once, and its warps.
_TILE = 4096
_WARPS = 4


@torch.library.custom_op("groundup::packed_query_key_norm", mutates_args=())
def packed_query_key_norm(
    packed: Tensor, query_gain: Tensor, key_gain: Tensor, eps: float
) -> Tensor:
    """Queries, keys and values side by side, (…, 3 · d_model): each head of the first two
    normalized, x / √(mean(x²) + eps) · gain, the values as they are.

    query_gain, key_gain: (d_head,), with d_head a power of two.
    """
    d_head = len(query_gain)
    num_heads = packed.shape[-1] // (3 * d_head)
    count, tile = packed.numel() // (3 * d_head), _TILE // d_head
    out = torch.empty_like(packed)
    _normalize[(triton.cdiv(count, tile), 3)](
        packed,
        query_gain,
        key_gain,
        out,
        eps,
        count,
        HEADS=num_heads,
        D_HEAD=d_head,
        TILE=tile,
        num_warps=_WARPS,
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
    d_head = len(query_gain)
    num_heads = packed.shape[-1] // (3 * d_head)
    count, tile = packed.numel() // (3 * d_head), _TILE // d_head
    num_programs = triton.cdiv(count, tile)
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
        count,
        HEADS=num_heads,
        D_HEAD=d_head,
        TILE=tile,
        num_warps=_WARPS,
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
def _heads(part, count, HEADS: tl.constexpr, D_HEAD: tl.constexpr, TILE: tl.constexpr):
    """Offsets of this program's heads of one part, (TILE, D_HEAD), and which of them exist. The
    `count` heads of all rows are numbered row after row."""
    index = tl.program_id(0) * TILE + tl.arange(0, TILE)
    start = (index // HEADS).to(tl.int64) * (3 * HEADS) + part * HEADS + index % HEADS
    return start[:, None] * D_HEAD + tl.arange(0, D_HEAD)[None, :], (index < count)[:, None]


@triton.jit
def _normalize(
    packed,
    query_gain,
    key_gain,
    out,
    eps,
    count,
    HEADS: tl.constexpr,
    D_HEAD: tl.constexpr,
    TILE: tl.constexpr,
):
    part = tl.program_id(1)
    offset, inside = _heads(part, count, HEADS, D_HEAD, TILE)
    x = tl.load(packed + offset, mask=inside, other=0.0).to(tl.float32)
    if part < 2:
        dim = tl.arange(0, D_HEAD)
        gain = tl.where(part == 0, tl.load(query_gain + dim), tl.load(key_gain + dim))
        scale = tl.rsqrt(tl.sum(x * x, axis=1) / D_HEAD + eps)
        x = x * scale[:, None] * gain.to(tl.float32)[None, :]
    tl.store(out + offset, x, mask=inside)


@triton.jit
def _normalize_backward(
    packed,
    query_gain,
    key_gain,
    d_out,
    d_packed,
    parts,
    eps,
    count,
    HEADS: tl.constexpr,
    D_HEAD: tl.constexpr,
    TILE: tl.constexpr,
):
    """With n = x / √(mean(x²) + eps) and y = n · gain:

    dx = (dy · gain - n · mean(dy · gain · n)) / √(mean(x²) + eps);   dgain = Σ dy · n
    """
    part = tl.program_id(1)
    offset, inside = _heads(part, count, HEADS, D_HEAD, TILE)
    dy = tl.load(d_out + offset, mask=inside, other=0.0).to(tl.float32)
    if part < 2:
        x = tl.load(packed + offset, mask=inside, other=0.0).to(tl.float32)
        dim = tl.arange(0, D_HEAD)
        gain = tl.where(part == 0, tl.load(query_gain + dim), tl.load(key_gain + dim))
        scale = tl.rsqrt(tl.sum(x * x, axis=1) / D_HEAD + eps)[:, None]
        n = x * scale
        position = part * tl.num_programs(0) + tl.program_id(0)
        tl.store(parts + position * D_HEAD + dim, tl.sum(dy * n, axis=0))
        dy = dy * gain.to(tl.float32)[None, :]
        dy = (dy - n * (tl.sum(dy * n, axis=1) / D_HEAD)[:, None]) * scale
    tl.store(d_packed + offset, dy, mask=inside)
