"""What training and generation are measured against computes what ours does, from our weights."""

import types
from pathlib import Path

import pytest
import torch

from groundup.model import ModelConfig, TransformerLM

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"
CONFIG = ModelConfig(
    vocab_size=61, context_length=24, d_model=48, num_layers=3, num_heads=4, d_ff=80
)


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import train_peers

    return train_peers


@pytest.fixture
def writers(peers: types.ModuleType) -> types.ModuleType:
    import generation_peers

    return generation_peers


@pytest.fixture
def ours() -> TransformerLM:
    torch.manual_seed(0)
    return TransformerLM.from_config(CONFIG)


@pytest.fixture
def ids() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(CONFIG.vocab_size, (3, CONFIG.context_length), generator=generator)


@pytest.mark.parametrize("tool", ["torch", "huggingface"])
def test_a_peer_with_our_weights_has_our_loss_and_gradients(
    tool: str, peers: types.ModuleType, ours: TransformerLM, ids: torch.Tensor
) -> None:
    if tool == "huggingface":
        pytest.importorskip("transformers")
    model = peers.open_peer(tool, CONFIG, ours.state_dict())
    expected = ours.loss(ids[:, :-1], ids[:, 1:])
    inputs = ids if tool == "huggingface" else ids[:, :-1]
    found = peers.loss_of(model, tool)(inputs, ids[:, 1:])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    expected.backward()
    found.backward()
    gradients = [
        torch.nn.utils.get_total_norm(
            [one.grad for one in module.parameters() if one.grad is not None]
        )
        for module in (ours, model)
    ]
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-5, rtol=1e-4)


def test_rotation_with_rows_left_in_pairs_would_be_noticed(
    peers: types.ModuleType, ours: TransformerLM, ids: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_halves_from_pairs", lambda weight, num_heads: weight)
    model = peers.open_peer("torch", CONFIG, ours.state_dict())
    loss = ours.loss(ids[:, :-1], ids[:, 1:])
    assert abs(model(ids[:, :-1], ids[:, 1:]) - loss) > 1e-3


def test_every_peer_learns_one_batch(peers: types.ModuleType, ids: torch.Tensor) -> None:
    for tool in ("torch", "gpt"):
        torch.manual_seed(0)
        model = peers.open_peer(tool, CONFIG)
        optimizer = peers.fused_adamw(model, 1e-2)
        batch = ids[:, :-1], ids[:, 1:]
        losses = [peers.take_step(model, optimizer, 1.0, batch)[0].item() for _ in range(20)]
        assert losses[-1] < 0.5 * losses[0]


@torch.no_grad()
def test_greedy_ids_are_those_of_our_model_however_often_it_is_asked(
    peers: types.ModuleType, writers: types.ModuleType, ours: TransformerLM
) -> None:
    plain = peers.open_peer("torch", CONFIG, ours.state_dict())
    write = writers.open_writer(writers.COMPILED, plain, CONFIG, None, is_compiled=False)
    generator = torch.Generator().manual_seed(1)
    # The second batch finds what the first, longer one left in the cache.
    for shape in ((3, 9), (3, 5), (1, 2)):
        prompts = torch.randint(CONFIG.vocab_size, shape, generator=generator)
        expected = prompts
        while expected.shape[1] < 14:
            likeliest = ours(expected)[:, -1].argmax(-1, keepdim=True)
            expected = torch.cat((expected, likeliest), dim=1)
        assert torch.equal(write(prompts, 14 - shape[1]), expected[:, shape[1] :])
