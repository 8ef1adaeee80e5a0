"""What a model computes with a cache is what it computes without one."""

import itertools
from typing import Any

import pytest
import torch

from groundup.model import TransformerLM
from groundup.nn import KVCache


# tests/generation/test_decoder.py goes through all settings, and rows of different lengths.
@torch.no_grad()
@pytest.mark.parametrize(
    "settings",
    [{"positions": "none"}, {"num_kv_heads": 2, "qk_norm": True}, {"document_separator": 3}],
)
@pytest.mark.usefixtures("form")
def test_cached_logits_are_the_uncached_ones(settings: dict[str, Any]) -> None:
    model = TransformerLM(40, 12, 32, 2, 4, rope_theta=100.0, **settings)
    ids = torch.randint(40, (3, 12))
    ids[0, [3, 6, 8]] = ids[1, 5] = ids[2, 11] = 3
    whole = model(ids)
    cache = KVCache(2, 3, model.config.key_value_heads, 12, model.config.d_head)
    # A prompt at once, then two tokens, then one by one; only the first positions are looked at.
    for begin, stop in itertools.pairwise([0, 5, 7, 8, 9, 10, 11, 12]):
        positions = torch.arange(begin, stop).expand(3, -1)
        logits = model(ids[:, begin:stop], positions, cache.up_to(stop))
        torch.testing.assert_close(logits, whole[:, begin:stop], atol=2e-5, rtol=1e-4)
        assert not cache.keys[..., stop:, :].any()
