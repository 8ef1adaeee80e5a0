"""Small models, and the plain loop that is the oracle of the tests here."""

from typing import Any

import pytest
import torch

from groundup.generation import Engine, GenerationRequest
from groundup.generation.sampling import sample, uniforms
from groundup.model import TransformerLM


@pytest.fixture(autouse=True)
def always_on_one_thread(one_thread: None) -> None:
    pass


def new_model(seed: int = 0, **settings: Any) -> TransformerLM:
    shape = {"vocab_size": 50, "context_length": 12, "d_model": 32, "num_layers": 2, "num_heads": 4}
    torch.manual_seed(seed)
    model = TransformerLM(**(shape | settings), rope_theta=100.0)
    with torch.no_grad():
        # Larger weights, so that likely and unlikely ids are far apart.
        model.output_weight.mul_(6.0)
        for name, parameter in model.named_parameters():
            # Parameters initialized to zero would go untested.
            if name.endswith(("head_gate.weight", "value_sum.weight")):
                parameter.normal_()
    return model


@torch.no_grad()
def plain_ids(model: TransformerLM, request: GenerationRequest) -> list[int]:
    """The oracle: runs the model on the whole text for every new id, one row, no cache."""
    ids = list(request.prompt_ids)
    new: list[int] = []
    while len(new) < request.max_tokens and len(ids) <= model.config.context_length:
        logits = model(torch.tensor([ids]))[:, -1]
        seen = torch.zeros_like(logits, dtype=torch.bool)
        seen[0, ids] = True
        number = torch.tensor(uniforms([request.seed], [len(new)]), dtype=torch.float64)
        id = int(sample(request.sampler, logits, number, seen))
        new.append(id)
        if id in request.stop_ids:
            break
        ids.append(id)
    return new


def finish(engine: Engine) -> dict[int, list[int]]:
    """Step until no request is running; return the ids of each handle."""
    found: dict[int, list[int]] = {}
    while engine.num_running:
        for handle, token in engine.step():
            found.setdefault(handle, []).append(token.id)
    return found
