"""silu(gate) · up and its gradient on packed projections, a pass over memory each, which may round
its result's rows to float8 as well."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from groundup.nn.kernels.cuda_train.rounding import LARGEST, empty_rounded


@torch.library.custom_op("groundup::packed_swiglu", mutates_args=())
def packed_swiglu(packed: Tensor, rounds: bool) -> tuple[Tensor, Tensor, Tensor]:
    """silu(gate) · up, where `packed` holds gate and up side by side in its last dimension; if
    asked for its rows in float8, and their scales."""
    packed = packed.contiguous()
    out = packed.new_empty(*packed.shape[:-1], packed.shape[-1] // 2)
    small, scale = empty_rounded(out, rounds)
    _gate[_grid(packed)](packed, out, small, scale, **_blocks(packed), ROUNDS=rounds)
    return out, small, scale


@packed_swiglu.register_fake
def _(packed: Tensor, rounds: bool) -> tuple[Tensor, Tensor, Tensor]:
    out = packed.new_empty(*packed.shape[:-1], packed.shape[-1] // 2)
    return out, *empty_rounded(out, rounds)


@torch.library.custom_op("groundup::packed_swiglu_backward", mutates_args=())
def packed_swiglu_backward(
    d_out: Tensor, packed: Tensor, rounds: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of `packed`; if asked for its rows in float8, and their scales."""
    packed, d_out = packed.contiguous(), d_out.contiguous()
    d_packed = torch.empty_like(packed)
    small, scale = empty_rounded(d_packed, rounds)
    _gate_backward[_grid(packed)](
        packed, d_out, d_packed, small, scale, **_blocks(packed), ROUNDS=rounds
    )
    return d_packed, small, scale


@packed_swiglu_backward.register_fake
def _(d_out: Tensor, packed: Tensor, rounds: bool) -> tuple[Tensor, Tensor, Tensor]:
    d_packed = packed.new_empty(packed.shape)
    return d_packed, *empty_rounded(d_packed, rounds)


def _remember(ctx, inputs, output):
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(inputs[0])


def _backward(ctx, d_out, d_small, d_scale):
    return packed_swiglu_backward(d_out, *ctx.saved_tensors, False)[0], None


packed_swiglu.register_autograd(_backward, setup_context=_remember)


def _grid(packed: Tensor) -> tuple[int]:
    return (packed.numel() // packed.shape[-1],)


def _blocks(packed: Tensor) -> dict[str, int]:
    d_ff = packed.shape[-1] // 2
    block = triton.next_power_of_2(d_ff)
    return {"D_FF": d_ff, "BLOCK": block, "num_warps": min(max(block // 512, 1), 16)}


@triton.jit
def _gate(packed, out, small, scale, D_FF: tl.constexpr, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK)
    inside = index < D_FF
    gate = tl.load(packed + row * 2 * D_FF + index, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(packed + (row * 2 + 1) * D_FF + index, mask=inside, other=0.0).to(tl.float32)
    y = gate * tl.sigmoid(gate) * up
    tl.store(out + row * D_FF + index, y, mask=inside)
    if ROUNDS:
        most = tl.maximum(tl.max(tl.abs(y)), 1e-30)
        tl.store(small + row * D_FF + index, (y * (LARGEST / most)).to(tl.float8e4nv), mask=inside)
        tl.store(scale + row, most / LARGEST)


@triton.jit
def _gate_backward(
    packed, d_out, d_packed, small, scale,
    D_FF: tl.constexpr, BLOCK: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK)
    inside = index < D_FF
    of_gate, of_up = row * 2 * D_FF + index, (row * 2 + 1) * D_FF + index
    gate = tl.load(packed + of_gate, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(packed + of_up, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(d_out + row * D_FF + index, mask=inside, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    # d silu(g) / dg = σ(g) (1 + g (1 - σ(g)))
    d_gate, d_up = d * up * sigmoid * (1.0 + gate * (1.0 - sigmoid)), d * gate * sigmoid
    tl.store(d_packed + of_gate, d_gate, mask=inside)
    tl.store(d_packed + of_up, d_up, mask=inside)
    if ROUNDS:
        most = tl.maximum(tl.max(tl.maximum(tl.abs(d_gate), tl.abs(d_up))), 1e-30)
        tl.store(small + of_gate, (d_gate * (LARGEST / most)).to(tl.float8e4nv), mask=inside)
        tl.store(small + of_up, (d_up * (LARGEST / most)).to(tl.float8e4nv), mask=inside)
        tl.store(scale + row, most / LARGEST)
