"""Small models and the plain loop that everything here is held against."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from groundup.generation import Engine, GenerationRequest, Sampler
from groundup.generation.sampling import sample, uniforms
from groundup.model import TransformerLM


@pytest.fixture(autouse=True)
def always_on_one_thread(one_thread: None) -> None:
    pass


def _new_model(seed: int = 0, **settings: Any) -> TransformerLM:
    shape = {"vocab_size": 50, "context_length": 12, "d_model": 32, "num_layers": 2, "num_heads": 4}
    torch.manual_seed(seed)
    model = TransformerLM(**(shape | settings), rope_theta=100.0)
    with torch.no_grad():
        # Sharper than at first, so that likely and unlikely ids are far apart.
        model.output_weight.mul_(6.0)
        for name, parameter in model.named_parameters():
            # What begins at zero would go unseen.
            if name.endswith(("head_gate.weight", "value_sum.weight")):
                parameter.normal_()
    return model


@torch.no_grad()
def _plain_ids(model: TransformerLM, request: GenerationRequest) -> list[int]:
    """The oracle: the whole text through the model for every new id, no cache, one row."""
    ids = list(request.prompt_ids)
    new: list[int] = []
    while len(new) < request.max_tokens and len(ids) <= model.config.context_length:
        logits = model(torch.tensor([ids]))[:, -1]
        seen = torch.zeros_like(logits, dtype=torch.bool)
        seen[0, ids] = True
        number = torch.tensor(uniforms([request.seed], [len(new)]))
        id = int(sample(request.sampler, logits, number, seen))
        new.append(id)
        if id in request.stop_ids:
            break
        ids.append(id)
    return new


def _finish(engine: Engine) -> dict[int, list[int]]:
    """Step until nothing runs: the ids of each handle."""
    found: dict[int, list[int]] = {}
    while engine.num_running:
        for handle, token in engine.step():
            found.setdefault(handle, []).append(token.id)
    return found


def _check_traffic(
    engine: Engine, model: TransformerLM, samplers: Sequence[Sampler], seed: int, density: float
) -> None:
    """Requests that join and leave at any time each get the ids of the plain loop."""
    chance = random.Random(seed)
    waiting = [
        GenerationRequest(
            tuple(chance.randrange(50) for _ in range(chance.randint(1, 12))),
            chance.randint(1, 18),
            chance.choice(samplers),
            seed=chance.randrange(100),
            stop_ids=frozenset({chance.randrange(50)}),
            num_alternatives=chance.choice([-1, -1, -1, 0]),
        )
        for _ in range(36)
    ]
    asked: dict[int, GenerationRequest] = {}
    found: dict[int, list[int]] = {}
    gone: set[int] = set()
    while waiting or engine.num_running:
        while waiting and engine.num_free and chance.random() < density:
            one = waiting.pop()
            asked[engine.add(one)] = one
        for handle, token in engine.step():
            found.setdefault(handle, []).append(token.id)
        if engine.num_running and chance.random() < density / 6:
            gone.add(handle := chance.choice(list(asked)))
            engine.remove(handle)
    for handle, one in asked.items():
        whole, ids = _plain_ids(model, one), found.get(handle, [])
        assert ids == (whole[: len(ids)] if handle in gone else whole)


def _given(tool: Any) -> Any:
    """A fixture that is a function."""
    return pytest.fixture(lambda: tool)


new_model, plain_ids = _given(_new_model), _given(_plain_ids)
finish, check_traffic = _given(_finish), _given(_check_traffic)
