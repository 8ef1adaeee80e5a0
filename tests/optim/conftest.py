"""Optimizer tests are deterministic and use a small language model."""

from collections.abc import Callable

import pytest
import torch

from groundup.model import TransformerLM


@pytest.fixture(autouse=True)
def always_steady(steady: None) -> None:
    pass


@pytest.fixture
def tiny_model() -> Callable[..., TransformerLM]:
    """`tiny_model(seed=0, tied=False)` makes one with random weights from the seed."""

    def make(seed: int = 0, tied: bool = False) -> TransformerLM:
        torch.manual_seed(seed)
        return TransformerLM(20, 8, 8, 2, 2, 12, tie_embeddings=tied)

    return make
