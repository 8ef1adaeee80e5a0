"""silu(gate) · up and its gradient on packed projections, each in one pass over memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@torch.library.custom_op("groundup::packed_swiglu", mutates_args=())
def packed_swiglu(packed: Tensor) -> Tensor:
    """silu(gate) · up, with gate and up packed in the last dimension."""
    packed = packed.contiguous()
    out = packed.new_empty(*packed.shape[:-1], packed.shape[-1] // 2)
    _gate[_grid(packed)](packed, out, **_blocks(packed))
    return out


@packed_swiglu.register_fake
def _(packed: Tensor) -> Tensor:
    return packed.new_empty(*packed.shape[:-1], packed.shape[-1] // 2)


@torch.library.custom_op("groundup::packed_swiglu_backward", mutates_args=())
def packed_swiglu_backward(d_out: Tensor, packed: Tensor) -> Tensor:
    packed, d_out = packed.contiguous(), d_out.contiguous()
    d_packed = torch.empty_like(packed)
    _gate_backward[_grid(packed)](packed, d_out, d_packed, **_blocks(packed))
    return d_packed


@packed_swiglu_backward.register_fake
def _(d_out: Tensor, packed: Tensor) -> Tensor:
    return packed.new_empty(packed.shape)


def _remember(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, d_out):
    return packed_swiglu_backward(d_out, *ctx.saved_tensors)


packed_swiglu.register_autograd(_backward, setup_context=_remember)


def _grid(packed: Tensor) -> tuple[int]:
    return (packed.numel() // packed.shape[-1],)


def _blocks(packed: Tensor) -> dict[str, int]:
    d_ff = packed.shape[-1] // 2
    block = triton.next_power_of_2(d_ff)
    return {"D_FF": d_ff, "BLOCK": block, "num_warps": min(max(block // 512, 1), 16)}


@triton.jit
def _gate(packed, out, D_FF: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK)
    inside = index < D_FF
    gate = tl.load(packed + row * 2 * D_FF + index, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(packed + (row * 2 + 1) * D_FF + index, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * D_FF + index, gate * tl.sigmoid(gate) * up, mask=inside)


@triton.jit
def _gate_backward(packed, d_out, d_packed, D_FF: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK)
    inside = index < D_FF
    of_gate, of_up = row * 2 * D_FF + index, (row * 2 + 1) * D_FF + index
    gate = tl.load(packed + of_gate, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(packed + of_up, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(d_out + row * D_FF + index, mask=inside, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    # d silu(g) / dg = σ(g) (1 + g (1 - σ(g)))
    tl.store(d_packed + of_gate, d * up * sigmoid * (1.0 + gate * (1.0 - sigmoid)), mask=inside)
    tl.store(d_packed + of_up, d * gate * sigmoid, mask=inside)
