"""Fused float32 kernels for CPUs, where passes over memory dominate: the native core computes each
formula and each gradient in one pass, on packed projections."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from groundup import _native


class PackedAttention(torch.autograd.Function):
    """QK norm, RoPE and causal attention; see `MultiHeadSelfAttention`."""

    @staticmethod
    def forward(
        ctx: Any,
        packed: Tensor,
        cos: Tensor | None,
        sin: Tensor | None,
        gains: Tensor | None,
        eps: float,
        num_heads: int,
        document_starts: Tensor | None = None,
    ) -> Tensor:
        packed = packed.contiguous()
        batch, seq, width = packed.shape
        if cos is not None and sin is not None:
            cos, sin = cos[:seq], sin[:seq]
        sizes = (batch, seq, num_heads, width // (3 * num_heads))
        out = packed.new_empty(batch, seq, width // 3)
        log_sums = packed.new_empty(batch, num_heads, seq)
        _run(_native.attend, *sizes, eps, cos, sin, gains, document_starts, packed, out, log_sums)
        ctx.save_for_backward(packed, cos, sin, gains, out, log_sums, document_starts)
        ctx.sizes, ctx.eps = sizes, eps
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        packed, cos, sin, gains, out, log_sums, document_starts = ctx.saved_tensors
        d_packed = torch.empty_like(packed)
        d_gains = None if gains is None else torch.empty_like(gains)
        shape = *ctx.sizes, ctx.eps, cos, sin, gains, document_starts
        forward, gradients = (packed, out, log_sums), (d_out.contiguous(), d_packed, d_gains)
        _run(_native.attend_back, *shape, *forward, *gradients)
        return d_packed, None, None, d_gains, None, None, None


class PackedSwiGLU(torch.autograd.Function):
    """silu(gate) · up, with gate and up packed in the last dimension."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor) -> Tensor:
        packed = packed.contiguous()
        rows, width = _rows_and_width(packed)
        out = packed.new_empty(*packed.shape[:-1], width // 2)
        _run(_native.gate_rows, rows, width // 2, packed, out)
        ctx.save_for_backward(packed)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> Tensor:
        (packed,) = ctx.saved_tensors
        rows, width = _rows_and_width(packed)
        d_packed = torch.empty_like(packed)
        _run(_native.gate_gradient_rows, rows, width // 2, packed, d_out.contiguous(), d_packed)
        return d_packed


class RootMeanSquareNorm(torch.autograd.Function):
    """The sum t = x + addend (or None) and its norm; without an addend, t is x:

    y = n · g,  n = t · r,  r = 1 / sqrt(mean(t²) + eps)
    dn = dy · g;   dt += (dn - n · mean(dn · n)) · r;   dg = Σ dy · n
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, addend: Tensor | None, gain: Tensor, eps: float
    ) -> tuple[Tensor | None, Tensor]:
        x = x.contiguous()
        # FSDP frees weights by resizing their storage, which fails once NumPy shares it.
        gain = gain.clone()
        total = None
        if addend is not None:
            addend, total = addend.contiguous(), torch.empty_like(x)
        rows, width = _rows_and_width(x)
        out, scale = torch.empty_like(x), x.new_empty(rows)
        _run(_native.norm_rows, rows, width, eps, x, addend, gain, total, out, scale)
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
            gradients = d_out, d_total, x, gain, scale, d_x, d_gain
            _run(_native.norm_gradient_rows, rows, width, *gradients)
        return d_x, d_x if ctx.needs_input_grad[1] else None, d_gain, None


def rms_norm(x: Tensor, addend: Tensor | None, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x + addend (None without an addend) and its norm."""
    total, normed = RootMeanSquareNorm.apply(x, addend, gain, eps)
    return total, normed


def loss_and_gradient(logits: Tensor, targets: Tensor, z_loss: float) -> Tensor:
    """Return the loss of each row and overwrite the logits with their gradient."""
    losses = torch.empty(len(logits))
    _run(_native.loss_rows, *logits.shape, z_loss, logits, losses, targets)
    return losses


def orthogonalize(matrices: Tensor, coefficients: tuple[tuple[float, float, float], ...]) -> Tensor:
    """Orthogonalize a stack of matrices with at most as many rows as columns, each on one thread;
    see `groundup.optim.orthogonalization`."""
    matrices = matrices.contiguous()
    out = torch.empty_like(matrices)
    steps = torch.tensor(coefficients, dtype=torch.float32).reshape(-1, 3)
    _run(_native.orthogonalize, *matrices.shape, len(steps), matrices, steps, out)
    return out


def _run(native_pass: Any, *arguments: Any) -> None:
    """Call a native kernel with NumPy views of the tensors, on as many threads as torch uses."""
    arrays = (x.detach().numpy() if isinstance(x, Tensor) else x for x in arguments)
    native_pass(*arrays, torch.get_num_threads())


def _rows_and_width(x: Tensor) -> tuple[int, int]:
    width = x.shape[-1]
    return x.numel() // max(width, 1), width
