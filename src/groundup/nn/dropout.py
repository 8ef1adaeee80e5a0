"""Dropout."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from groundup.nn.functional import dropout


class Dropout(nn.Module):
    """Dropout, only in training mode with gradients enabled: evaluation and sampling during a run
    use the full model."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        is_active = self.rate > 0 and self.training and torch.is_grad_enabled()
        return dropout(x, self.rate) if is_active else x
