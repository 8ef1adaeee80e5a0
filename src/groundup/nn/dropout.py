"""Dropout."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from groundup.nn.functional import dropout


class Dropout(nn.Module):
    """`dropout` where the model learns, that is while gradients are recorded, and nothing
    elsewhere: an evaluation or a sample in the middle of a run sees the whole model."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        is_learning = self.rate > 0 and self.training and torch.is_grad_enabled()
        return dropout(x, self.rate) if is_learning else x
