"""What a model computes with a cache is what it computes without one."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from groundup.model import TransformerLM
from groundup.nn import KVCache

# tests/generation/test_decoder.py goes through all settings.
SETTINGS: list[dict[str, Any]] = [
    {"positions": "none"},
    {"num_kv_heads": 2, "qk_norm": True},
    {"document_separator": 3},
]


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
    ids[0, [3, 6, 8]] = ids[1, 5] = ids[2, 11] = 3
    whole = model(ids)
    cache = new_cache(model, 3)
    # A prompt at once, then two tokens, then one by one; only the first positions are looked at.
    for begin, stop in itertools.pairwise([0, 5, 7, 8, 9, 10, 11, 12]):
        positions = torch.arange(begin, stop).expand(3, -1)
        logits = model(ids[:, begin:stop], positions, cache.up_to(stop))
        assert close(logits, whole[:, begin:stop])
        assert not cache.keys[..., stop:, :].any()


@torch.no_grad()
def test_rows_of_different_lengths_share_a_batch_and_copies_keep_their_text() -> None:
    model = new_model(num_kv_heads=2, document_separator=3)
    texts = [torch.randint(40, (length,)) for length in (9, 2, 5)]
    texts[0][4] = texts[2][1] = 3
    cache = new_cache(model, 3)
    # Other, longer texts were in the rows before.
    model(torch.randint(40, (3, 12)), torch.arange(12).expand(3, -1), cache)
    for row, text in enumerate(texts):
        view = cache.rows(row, row + 1)
        model(text[None, :-1], torch.arange(len(text) - 1)[None], view)
    last = torch.stack([text[-1:] for text in texts])
    positions = torch.tensor([[len(text) - 1] for text in texts])
    together = model(last, positions, cache)
    for row, text in enumerate(texts):
        assert close(together[row, 0], model(text[None])[0, -1])
    cache.copy(2, 0)
    cache.copy(0, 1)
    logits = model(last[2:].expand(2, 1), positions[2:].expand(2, 1), cache.rows(0, 2))
    assert all(close(row[0], together[2, 0]) for row in logits)
