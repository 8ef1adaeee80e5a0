"""What generation is measured against gives our ids, and samples what top-p allows."""

import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from groundup.model import ModelConfig, TransformerLM

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"
CONFIG = ModelConfig(
    vocab_size=61, context_length=24, d_model=48, num_layers=3, num_heads=4, d_ff=80
)


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import generation_peers

    return generation_peers


@pytest.fixture
def ours() -> TransformerLM:
    torch.manual_seed(0)
    return TransformerLM.from_config(CONFIG)


@pytest.fixture
def plain(peers: types.ModuleType, ours: TransformerLM) -> Any:
    import train_peers

    return train_peers.open_peer("torch", CONFIG, ours.state_dict())


@torch.no_grad()
def likeliest_ids(model: TransformerLM, prompts: Tensor, num_new_ids: int) -> Tensor:
    """Without a cache."""
    ids = prompts
    for _ in range(num_new_ids):
        ids = torch.cat((ids, model(ids)[:, -1].argmax(-1, keepdim=True)), dim=1)
    return ids[:, prompts.shape[1] :]


@pytest.mark.parametrize("tool", ["NO_CACHE", "COMPILED"])
def test_greedy_ids_are_those_of_our_model_however_often_it_is_asked(
    tool: str, peers: types.ModuleType, ours: TransformerLM, plain: Any
) -> None:
    write = peers.open_writer(getattr(peers, tool), plain, CONFIG, None, is_compiled=False)
    generator = torch.Generator().manual_seed(1)
    # The second batch finds what the first, longer one left in the cache.
    for shape in ((3, 9), (3, 5), (1, 2)):
        prompts = torch.randint(CONFIG.vocab_size, shape, generator=generator)
        num_new_ids = 14 - shape[1]
        expected = likeliest_ids(ours, prompts, num_new_ids)
        assert torch.equal(write(prompts, num_new_ids), expected)
