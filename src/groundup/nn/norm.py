"""Root-mean-square normalization."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from groundup.nn.kernels import cpu, is_plain_cpu


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x²) + eps) · g, with the mean over the last dimension; gain g starts at 1.

    Computed in at least float32, because squares of half-precision values overflow.
    """

    def __init__(
        self,
        d_model: int,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model, device=device, dtype=dtype))

    def forward(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        if self._is_fused(x):
            return cpu.rms_norm(x, None, self.weight, self.eps)[1]
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return (wide * scale * self.weight).to(x.dtype)

    def of_sum(
        self, x: Float[Tensor, "... d_model"], addend: Float[Tensor, "... d_model"]
    ) -> tuple[Float[Tensor, "... d_model"], Float[Tensor, "... d_model"]]:
        """Return x + addend and its norm."""
        if self._is_fused(x) and is_plain_cpu(addend) and x.shape == addend.shape:
            return cpu.rms_norm(x, addend, self.weight, self.eps)
        total = x + addend
        return total, self(total)

    def _is_fused(self, x: Tensor) -> bool:
        return is_plain_cpu(x) and is_plain_cpu(self.weight)
