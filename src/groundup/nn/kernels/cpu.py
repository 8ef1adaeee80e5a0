"""Fast twins for float32 on a CPU, where each pass over memory counts: the native core makes one
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
        parts = packed.view(batch, seq, 3, num_heads, -1)
        if cos is None or sin is None:
            query, key = parts[:, :, 0], parts[:, :, 1]
        else:
            cos, sin = cos[:seq], sin[:seq]
            query, key = packed.new_empty(sizes), packed.new_empty(sizes)
            _native.turn_packed(
                _array(packed),
                _array(cos),
                _array(sin),
                _array(query),
                _array(key),
                *sizes,
                torch.get_num_threads(),
            )
        query, key, value = (part.transpose(1, 2) for part in (query, key, parts[:, :, 2]))
        mixed, log_total = _aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, True
        )
        ctx.save_for_backward(query, key, value, mixed, log_total, cos, sin)
        return mixed.transpose(1, 2).reshape(batch, seq, width // 3)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mixed, log_total, cos, sin = ctx.saved_tensors
        batch, num_heads, seq, d_head = query.shape
        d_mixed = d_out.reshape(batch, seq, num_heads, d_head).transpose(1, 2)
        gradients = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            d_mixed, query, key, value, mixed, log_total, 0.0, True
        )
        parts = [gradient.transpose(1, 2).contiguous() for gradient in gradients]
        if cos is None:
            return torch.stack(parts, dim=2).view(batch, seq, -1), None, None, None
        d_packed = d_out.new_empty(batch, seq, 3 * num_heads * d_head)
        _native.turn_back(
            _array(parts[0]),
            _array(parts[1]),
            _array(parts[2]),
            _array(cos),
            _array(sin),
            _array(d_packed),
            batch,
            seq,
            num_heads,
            d_head,
            torch.get_num_threads(),
        )
        return d_packed, None, None, None


class PackedSwiGLU(torch.autograd.Function):
    """silu(gate) · up, with gate and up side by side."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor) -> Tensor:
        packed = packed.contiguous()
        rows, width = _rows_and_width(packed)
        out = packed.new_empty(*packed.shape[:-1], width // 2)
        num_threads = torch.get_num_threads()
        _native.gate_rows(_array(packed), _array(out), rows, width // 2, num_threads)
        ctx.save_for_backward(packed)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> Tensor:
        (packed,) = ctx.saved_tensors
        rows, width = _rows_and_width(packed)
        d_packed = torch.empty_like(packed)
        _native.gate_gradient_rows(
            _array(packed),
            _array(d_out.contiguous()),
            _array(d_packed),
            rows,
            width // 2,
            torch.get_num_threads(),
        )
        return d_packed


class NormByRootMeanSquare(torch.autograd.Function):
    """y = n · g with n = x · r, r = 1 / sqrt(mean(x²) + eps), and back:

    dn = dy · g;   dx = (dn - n · mean(dn · n)) · r;   dg = Σ dy · n
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        x = x.contiguous()
        out, scale = _norm(x, None, gain, None, eps)
        ctx.save_for_backward(x, gain, scale)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor, None]:
        return *_norm_gradients(d_out, None, *ctx.saved_tensors), None


class NormOfSum(torch.autograd.Function):
    """The sum of two tensors and its norm, as above, whose gradient the sum's own comes to."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, addend: Tensor, gain: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        x, addend = x.contiguous(), addend.contiguous()
        total = torch.empty_like(x)
        out, scale = _norm(x, addend, gain, total, eps)
        ctx.save_for_backward(total, gain, scale)
        ctx.set_materialize_grads(False)
        return total, out

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_total: Tensor | None, d_out: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        if d_out is None:
            return d_total, d_total, None, None
        d_x, d_gain = _norm_gradients(d_out, d_total, *ctx.saved_tensors)
        return d_x, d_x, d_gain, None


def _norm(
    x: Tensor, addend: Tensor | None, gain: Tensor, total: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """The norm and the scale of each row; `total` is filled with the sum."""
    rows, width = _rows_and_width(x)
    out, scale = torch.empty_like(x), x.new_empty(rows)
    _native.norm_rows(
        _array(x),
        None if addend is None else _array(addend),
        _array(gain),
        None if total is None else _array(total),
        _array(out),
        _array(scale),
        rows,
        width,
        eps,
        torch.get_num_threads(),
    )
    return out, scale


def _norm_gradients(
    d_out: Tensor, d_total: Tensor | None, x: Tensor, gain: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    rows, width = _rows_and_width(x)
    d_x, d_gain = torch.empty_like(x), torch.empty_like(gain)
    _native.norm_gradient_rows(
        _array(d_out.contiguous()),
        None if d_total is None else _array(d_total.contiguous()),
        _array(x),
        _array(gain),
        _array(scale),
        _array(d_x),
        _array(d_gain),
        rows,
        width,
        torch.get_num_threads(),
    )
    return d_x, d_gain


def _array(x: Tensor) -> Any:
    return x.detach().numpy()


def _rows_and_width(x: Tensor) -> tuple[int, int]:
    width = x.shape[-1]
    return x.numel() // max(width, 1), width
