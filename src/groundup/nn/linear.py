"""The linear layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from groundup.nn import float8
from groundup.nn.initialization import truncated_normal_


class Linear(nn.Module):
    """y = x Wᵀ, with W of shape (out_features, in_features) and no bias.

    W is initialized to a normal distribution with variance 2 / (in_features + out_features),
    truncated at three sigma.
    """

    # Use float8 matmuls in training: not at all, for inputs that are normalized, or for any input.
    float8_inputs: Literal["no", "normalized", "any"] = "no"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = nn.Parameter(
            torch.empty(out_features, in_features, device=device, dtype=dtype)
        )
        std = math.sqrt(2.0 / (self.in_features + self.out_features))
        truncated_normal_(self.weight, std=std, limit=3.0 * std)

    def forward(self, x: Float[Tensor, "... in_features"]) -> Float[Tensor, "... out_features"]:
        return _linear(x, self.weight, self.float8_inputs)


def packed_linear(
    x: Float[Tensor, "... in_features"], layers: Sequence[Linear]
) -> Float[Tensor, "... out_features"]:
    """The concatenated outputs of several layers, by one matmul with their stacked weights."""
    weight = torch.cat([layer.weight for layer in layers])
    return _linear(x, weight, layers[0].float8_inputs)


def _linear(x: Tensor, weight: Tensor, float8_inputs: str) -> Tensor:
    if float8_inputs != "no" and torch.is_grad_enabled() and float8.is_supported(x, len(weight)):
        return float8.linear(x, weight, float8_inputs == "normalized")
    return x @ weight.T
