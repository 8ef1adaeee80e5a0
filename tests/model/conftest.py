"""Model tests are deterministic and use a small model."""

from typing import Any

import pytest

from groundup.model import TransformerLM


@pytest.fixture(autouse=True)
def always_steady(steady: None) -> None:
    pass


def small(**settings: Any) -> TransformerLM:
    shape: dict[str, Any] = {"vocab_size": 61, "context_length": 16, "d_model": 24, "num_layers": 2}
    return TransformerLM(**{**shape, "num_heads": 4, "d_ff": 40, "rope_theta": 1e4, **settings})
