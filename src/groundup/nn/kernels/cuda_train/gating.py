"""silu(gate) · up and its gradient on packed projections, a pass over memory each."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048


@torch.library.custom_op("groundup::packed_swiglu", mutates_args=())
def packed_swiglu(packed: Tensor) -> Tensor:
    """silu(gate) · up, where `packed` holds gate and up side by side in its last dimension."""
    d_ff = packed.shape[-1] // 2
    out = packed.new_empty(*packed.shape[:-1], d_ff)
    grid = (triton.cdiv(out.numel(), _BLOCK),)
    _gate[grid](packed, out, out.numel(), D_FF=d_ff, BLOCK=_BLOCK, num_warps=4)
    return out


@packed_swiglu.register_fake
def _(packed: Tensor) -> Tensor:
    return packed.new_empty(*packed.shape[:-1], packed.shape[-1] // 2)


@torch.library.custom_op("groundup::packed_swiglu_backward", mutates_args=())
def packed_swiglu_backward(d_out: Tensor, packed: Tensor) -> Tensor:
    d_out = d_out.contiguous()
    d_packed = torch.empty_like(packed)
    grid = (triton.cdiv(d_out.numel(), _BLOCK),)
    _gate_backward[grid](
        packed,
        d_out,
        d_packed,
        d_out.numel(),
        D_FF=packed.shape[-1] // 2,
        BLOCK=_BLOCK,
        num_warps=4,
    )
    return d_packed


@packed_swiglu_backward.register_fake
def _(d_out: Tensor, packed: Tensor) -> Tensor:
    return torch.empty_like(packed)


def _remember(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, d_out):
    return packed_swiglu_backward(d_out, *ctx.saved_tensors)


packed_swiglu.register_autograd(_backward, setup_context=_remember)


@triton.jit
def gated(gate, up):
    return gate * tl.sigmoid(gate) * up


@triton.jit
def gate_gradients(gate, up, d):
    sigmoid = tl.sigmoid(gate)
    # d silu(g) / dg = σ(g) (1 + g (1 - σ(g)))
    return d * up * sigmoid * (1.0 + gate * (1.0 - sigmoid)), d * gate * sigmoid


@triton.jit
def _gate(packed, out, count, D_FF: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    source = packed + (index // D_FF) * (2 * D_FF) + index % D_FF
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + D_FF, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + index, gated(gate, up), mask=inside)


@triton.jit
def _gate_backward(packed, d_out, d_packed, count, D_FF: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    offset = (index // D_FF) * (2 * D_FF) + index % D_FF
    gate = tl.load(packed + offset, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(packed + offset + D_FF, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(d_out + index, mask=inside, other=0.0).to(tl.float32)
    d_gate, d_up = gate_gradients(gate, up, d)
    tl.store(d_packed + offset, d_gate, mask=inside)
    tl.store(d_packed + offset + D_FF, d_up, mask=inside)
