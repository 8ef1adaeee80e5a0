"""What a model computes with a cache is what it computes without one."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from groundup.model import TransformerLM
from groundup.nn import KVCache

# tests/generation/test_decoder.py goes through all settings.
SETTINGS: list[dict[str, Any]] = [{"positions": "none"}, {"num_kv_heads": 2, "qk_norm": True}]


def new_model(**settings: Any) -> TransformerLM:
    shape = {"vocab_size": 40, "context_length": 12, "d_model": 32, "num_layers": 2, "num_heads": 4}
    return TransformerLM(**(shape | settings), rope_theta=100.0)


def new_cache(model: TransformerLM, num_rows: int, max_seq_len: int = 12) -> KVCache:
    config = model.config
    return KVCache(config.num_layers, num_rows, config.key_value_heads, max_seq_len, config.d_head)


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, atol=2e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.usefixtures("form")
def test_cached_logits_are_the_uncached_ones(settings: dict[str, Any]) -> None:
    model = new_model(**settings)
    ids = torch.randint(40, (3, 12))
    whole = model(ids)
    cache = new_cache(model, 3)
    # A prompt at once, then two tokens, then one by one; only the first positions are looked at.
    for begin, stop in itertools.pairwise([0, 5, 7, 8, 9, 10, 11, 12]):
        positions = torch.arange(begin, stop).expand(3, -1)
        logits = model(ids[:, begin:stop], positions, cache.up_to(stop))
        assert close(logits, whole[:, begin:stop])
        assert not cache.keys[..., stop:, :].any()
