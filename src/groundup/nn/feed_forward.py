"""Position-wise feed-forward layers, gated and ungated."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from groundup.nn import kernels as fused
from groundup.nn.functional import gelu, silu, squared_relu
from groundup.nn.linear import Linear, packed_linear


class FeedForward(nn.Module):
    """y = W_down inner(x), with W_up and, if gated, W_gate of shape (d_ff, d_model)."""

    feed_forward_name: str
    is_gated = False
    gate: Linear

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if self.is_gated:
            self.gate = Linear(d_model, d_ff, device=device, dtype=dtype)
        self.up = Linear(d_model, d_ff, device=device, dtype=dtype)
        self.down = Linear(d_ff, d_model, device=device, dtype=dtype)

    def forward(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        y: Tensor = self.down(self.inner(x))
        return y

    def inner(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_ff"]:
        """activation(W_up x), unless a subclass overrides it."""
        return self.activation(self.up(x))

    @staticmethod
    def activation(x: Tensor) -> Tensor:
        raise NotImplementedError


class SwiGLU(FeedForward):
    """y = W_down (silu(W_gate x) · W_up x)."""

    feed_forward_name = "swiglu"
    is_gated = True

    def inner(self, x: Tensor) -> Tensor:
        if not fused.are_enabled():
            up: Tensor = self.up(x)
            return silu(self.gate(x)) * up
        packed = packed_linear(x, (self.gate, self.up))
        if fused.can_run_on(packed):
            return fused.packed_swiglu(packed)
        gate, up = packed.chunk(2, dim=-1)
        return nn.functional.silu(gate) * up


class SiLU(FeedForward):
    feed_forward_name = "silu"
    activation = staticmethod(silu)


class GELU(FeedForward):
    feed_forward_name = "gelu"
    activation = staticmethod(gelu)


class SquaredReLU(FeedForward):
    feed_forward_name = "relu2"
    activation = staticmethod(squared_relu)
