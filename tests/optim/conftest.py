"""Every test of the optimizers is steady, and has a model with our parameter names."""

from collections.abc import Callable

import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def always_steady(steady: None) -> None:
    pass


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(8)
        self.up = nn.Linear(8, 12, bias=False)
        self.down = nn.Linear(12, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.attention_norm(x))))


class TinyModel(nn.Module):
    """The names and shapes of a language model, and nothing more."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(20, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.final_norm = nn.RMSNorm(8)
        self.lm_head = nn.Linear(8, 20, bias=False)
        if tied:
            self.lm_head.weight = self.token_embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token_embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.final_norm(x))


@pytest.fixture
def tiny_model() -> Callable[..., TinyModel]:
    """`tiny_model(seed=0, tied=False)` makes one with its weights drawn from the seed."""

    def make(seed: int = 0, tied: bool = False) -> TinyModel:
        torch.manual_seed(seed)
        return TinyModel(tied)

    return make
