"""Value embeddings: attention adds a vector of the token itself to its values, so that the stream
of the last blocks need not keep which token it stands at."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from groundup.nn.linear import Linear
from groundup.nn.norm import RMSNorm


class ValueProjection(nn.Module):
    """e = W norm(first), with `first` the token's embedding."""

    def __init__(
        self,
        d_model: int,
        d_key_value: int,
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.norm = RMSNorm(d_model, norm_eps, **made)
        self.projection = Linear(d_model, d_key_value, **made)

    def forward(self, first: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_key_value"]:
        projected: Tensor = self.projection(self.norm(first))
        return projected


class ValueSum(nn.Module):
    """y = v + a · e for the values v of a block, with a learned, at first 0."""

    def __init__(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, device=device, dtype=dtype))

    def forward(
        self, values: Float[Tensor, "... d_key_value"], extra: Float[Tensor, "... d_key_value"]
    ) -> Float[Tensor, "... d_key_value"]:
        return (values + self.weight * extra).to(values.dtype)
