"""Fast twins for float32 on a CPU, where each pass over memory counts: the same formulas with
hand-made gradients, packed projections in and packed gradients out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_aten = torch.ops.aten


class PackedAttention(torch.autograd.Function):
    """Rotation and causal attention; see `MultiHeadSelfAttention` for the formula.

    A pair (x_2k, x_2k+1) is one complex number here, and turning it one multiplication.
    """

    @staticmethod
    def forward(
        ctx: Any, packed: Tensor, cos: Tensor | None, sin: Tensor | None, num_heads: int
    ) -> Tensor:
        batch, seq, width = packed.shape
        parts = packed.view(batch, seq, 3, num_heads, -1)
        turned, turn = parts[:, :, :2], None
        if cos is not None and sin is not None:
            turn = torch.complex(cos[:seq], sin[:seq])[:, None, None, :]
            turned = _real(_complex(turned) * turn)
        query, key = turned.permute(2, 0, 3, 1, 4).unbind(0)
        value = parts[:, :, 2].transpose(1, 2)
        mixed, log_total = _aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, True
        )
        ctx.save_for_backward(query, key, value, mixed, log_total, turn)
        return mixed.transpose(1, 2).reshape(batch, seq, width // 3)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mixed, log_total, turn = ctx.saved_tensors
        batch, num_heads, seq, d_head = query.shape
        d_mixed = d_out.reshape(batch, seq, num_heads, d_head).transpose(1, 2)
        gradients = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            d_mixed, query, key, value, mixed, log_total, 0.0, True
        )
        d_packed = d_out.new_empty(batch, seq, 3, num_heads, d_head)
        for place, gradient in enumerate(gradients):
            target, source = d_packed[:, :, place], gradient.transpose(1, 2)
            if turn is None or place == 2:
                target.copy_(source)
            else:
                torch.mul(_complex(source), turn[:, 0].conj(), out=_complex(target))
        return d_packed.view(batch, seq, -1), None, None, None


class PackedSwiGLU(torch.autograd.Function):
    """silu(gate) · up, with gate and up side by side."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor) -> Tensor:
        gate, up = packed.chunk(2, dim=-1)
        active = torch.nn.functional.silu(gate)
        ctx.save_for_backward(packed, active)
        return active * up

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> Tensor:
        packed, active = ctx.saved_tensors
        gate, up = packed.chunk(2, dim=-1)
        d_packed = torch.empty_like(packed)
        d_gate, d_up = d_packed.chunk(2, dim=-1)
        torch.mul(d_out, active, out=d_up)
        _aten.silu_backward.grad_input(d_out * up, gate, grad_input=d_gate)
        return d_packed


class NormByRootMeanSquare(torch.autograd.Function):
    """y = n · g with n = x · r, r = 1 / sqrt(mean(x²) + eps), and back:

    dn = dy · g;   dx = (dn - n · mean(dn · n)) · r;   dg = Σ dy · n
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        normal = x * scale
        ctx.save_for_backward(normal, gain, scale)
        return normal * gain

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor, None]:
        normal, gain, scale = ctx.saved_tensors
        product = d_out * normal
        d_gain = product.reshape(-1, product.shape[-1]).sum(0)
        # mean(dn · n) = mean(dy · n · g): a product with the gain as a vector.
        shared = (product @ gain).unsqueeze(-1)
        d_normal = (d_out * gain).addcmul_(normal, shared, value=-1 / normal.shape[-1])
        return d_normal.mul_(scale), d_gain, None


def _complex(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))


def _real(x: Tensor) -> Tensor:
    return torch.view_as_real(x).flatten(-2)
