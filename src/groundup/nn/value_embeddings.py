"""Value embeddings: attention adds a projection of the token embedding to its values, so that the
residual stream need not carry the token's identity to the last blocks."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from groundup.nn.linear import Linear
from groundup.nn.norm import RMSNorm


class ValueProjection(nn.Module):
    """e = W norm(first), where `first` is the token embedding."""

    def __init__(
        self,
        d_model: int,
        d_key_value: int,
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        kwargs: dict[str, Any] = {"device": device, "dtype": dtype}
        self.norm = RMSNorm(d_model, norm_eps, **kwargs)
        self.projection = Linear(d_model, d_key_value, **kwargs)

    def forward(self, first: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_key_value"]:
        projected: Tensor = self.projection(self.norm(first))
        return projected


class ValueSum(nn.Module):
    """y = v + a · e for the values v of a block, where a is learned and initially 0."""

    def __init__(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, device=device, dtype=dtype))

    def forward(
        self, values: Float[Tensor, "... d_key_value"], extra: Float[Tensor, "... d_key_value"]
    ) -> Float[Tensor, "... d_key_value"]:
        return (values + self.weight * extra).to(values.dtype)
