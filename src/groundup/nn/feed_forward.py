"""The position-wise feed-forward layer, gated and plain."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from groundup.nn import kernels as fused
from groundup.nn.functional import gelu, silu, squared_relu
from groundup.nn.linear import Linear, packed_linear

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu": gelu,
    "relu2": squared_relu,
}


class SwiGLU(nn.Module):
    """y = W_down (silu(W_gate x) · W_up x), with W_gate and W_up of shape (d_ff, d_model)."""

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.gate = Linear(d_model, d_ff, device=device, dtype=dtype)
        self.up = Linear(d_model, d_ff, device=device, dtype=dtype)
        self.down = Linear(d_ff, d_model, device=device, dtype=dtype)

    def forward(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        y: Tensor = self.down(self._gated(x))
        return y

    def _gated(self, x: Tensor) -> Tensor:
        if not fused.are_enabled():
            up: Tensor = self.up(x)
            return silu(self.gate(x)) * up
        packed = packed_linear(x, (self.gate, self.up))
        if fused.can_run_on(packed):
            return fused.packed_swiglu(packed)
        gate, up = packed.chunk(2, dim=-1)
        return nn.functional.silu(gate) * up


class FeedForward(nn.Module):
    """y = W_down f(W_up x), with f one of silu, gelu and relu2."""

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        activation: str = "silu",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.up = Linear(d_model, d_ff, device=device, dtype=dtype)
        self.down = Linear(d_ff, d_model, device=device, dtype=dtype)

    def forward(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        y: Tensor = self.down(ACTIVATIONS[self.activation](self.up(x)))
        return y
