"""Fused kernels for float32 on a CPU, where each pass over memory counts: the native core makes one
pass of each formula and of its gradient, packed projections in and packed gradients out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from groundup import _native

_aten = torch.ops.aten


class PackedAttention(torch.autograd.Function):
    """Rotation and causal attention; see `MultiHeadSelfAttention` for the formula."""

    @staticmethod
    def forward(
        ctx: Any, packed: Tensor, cos: Tensor | None, sin: Tensor | None, num_heads: int
    ) -> Tensor:
        batch, seq, width = packed.shape
        sizes = (batch, seq, num_heads, width // (3 * num_heads))
        query, key, value = packed.view(batch, seq, 3, num_heads, -1).unbind(2)
        if cos is not None and sin is not None:
            cos, sin = cos[:seq], sin[:seq]
            query, key = packed.new_empty(sizes), packed.new_empty(sizes)
            _run(_native.rotate_packed, packed, cos, sin, query, key, *sizes)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        mixed, logsumexp = _aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, True
        )
        ctx.save_for_backward(query, key, value, mixed, logsumexp, cos, sin)
        return mixed.transpose(1, 2).reshape(batch, seq, width // 3)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mixed, logsumexp, cos, sin = ctx.saved_tensors
        batch, num_heads, seq, d_head = query.shape
        d_mixed = d_out.reshape(batch, seq, num_heads, d_head).transpose(1, 2)
        gradients = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            d_mixed, query, key, value, mixed, logsumexp, 0.0, True
        )
        parts = [gradient.transpose(1, 2).contiguous() for gradient in gradients]
        if cos is None:
            return torch.stack(parts, dim=2).view(batch, seq, -1), None, None, None
        d_packed = d_out.new_empty(batch, seq, 3 * num_heads * d_head)
        _run(_native.rotate_back, *parts, cos, sin, d_packed, batch, seq, num_heads, d_head)
        return d_packed, None, None, None


class PackedSwiGLU(torch.autograd.Function):
    """silu(gate) · up, with gate and up side by side."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor) -> Tensor:
        packed = packed.contiguous()
        rows, width = _rows_and_width(packed)
        out = packed.new_empty(*packed.shape[:-1], width // 2)
        _run(_native.gate_rows, packed, out, rows, width // 2)
        ctx.save_for_backward(packed)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> Tensor:
        (packed,) = ctx.saved_tensors
        rows, width = _rows_and_width(packed)
        d_packed = torch.empty_like(packed)
        _run(_native.gate_gradient_rows, packed, d_out.contiguous(), d_packed, rows, width // 2)
        return d_packed


class RootMeanSquareNorm(torch.autograd.Function):
    """The sum t = x + addend, None without an addend, and the norm of it, or of x alone:

    y = n · g,  n = t · r,  r = 1 / sqrt(mean(t²) + eps)
    dn = dy · g;   dt += (dn - n · mean(dn · n)) · r;   dg = Σ dy · n
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, addend: Tensor | None, gain: Tensor, eps: float
    ) -> tuple[Tensor | None, Tensor]:
        x = x.contiguous()
        # FSDP frees weights by the size of their storage, which NumPy, once it has seen it, holds.
        gain = gain.clone()
        total = None
        if addend is not None:
            addend, total = addend.contiguous(), torch.empty_like(x)
        rows, width = _rows_and_width(x)
        out, scale = torch.empty_like(x), x.new_empty(rows)
        _run(_native.norm_rows, x, addend, gain, total, out, scale, rows, width, eps)
        ctx.save_for_backward(x if total is None else total, gain, scale)
        ctx.set_materialize_grads(False)
        return total, out

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_total: Tensor | None, d_out: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        d_x, d_gain = d_total, None
        if d_out is not None:
            x, gain, scale = ctx.saved_tensors
            rows, width = _rows_and_width(x)
            d_x, d_gain = torch.empty_like(x), torch.empty_like(gain)
            if d_total is not None:
                d_total = d_total.contiguous()
            d_out = d_out.contiguous()
            _run(
                _native.norm_gradient_rows, d_out, d_total, x, gain, scale, d_x, d_gain, rows, width
            )
        return d_x, d_x if ctx.needs_input_grad[1] else None, d_gain, None


def rms_norm(x: Tensor, addend: Tensor | None, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + addend (None without an addend) and its norm."""
    total, normal = RootMeanSquareNorm.apply(x, addend, gain, eps)
    return total, normal


def loss_and_gradient(logits: Tensor, targets: Tensor, z_loss: float) -> Tensor:
    """The loss of each row of logits, which its gradient is written over."""
    losses = torch.empty(len(logits))
    _run(_native.loss_rows, logits, targets, losses, *logits.shape, z_loss)
    return losses


def _run(native_pass: Any, *arguments: Any) -> None:
    """Call the native core with arrays in place of tensors, on as many threads as torch."""
    arrays = (x.detach().numpy() if isinstance(x, Tensor) else x for x in arguments)
    native_pass(*arrays, torch.get_num_threads())


def _rows_and_width(x: Tensor) -> tuple[int, int]:
    width = x.shape[-1]
    return x.numel() // max(width, 1), width
