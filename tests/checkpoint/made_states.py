"""Small checkpoints with values that follow from a seed, and their bitwise comparison."""

from pathlib import Path
from typing import Any

import torch

from groundup.checkpoint import Checkpoint, CheckpointFolder


def save(
    folder: CheckpointFolder, step: int, seed: int | None = None, metric: float | None = None
) -> Path:
    """Save the state of `seed`, by default the step."""
    return folder.save(step, metric=metric, **make_states(step if seed is None else seed))


def check(checkpoint: Checkpoint, seed: int) -> None:
    """Check that the checkpoint has exactly the state of `seed`."""
    made = make_states(seed)
    model, optimizer = checkpoint.model_state(), checkpoint.optimizer_state()
    assert model.keys() == made["model_state"].keys()
    for name, tensor in made["model_state"].items():
        assert model[name].dtype == tensor.dtype
        assert torch.equal(model[name], tensor)
    assert model["embedding"] is model["head"]
    ours, theirs = optimizer["state"][0], made["optimizer_state"]["state"][0]
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert ours["average"].dtype == torch.bfloat16
    assert optimizer["param_groups"] == made["optimizer_state"]["param_groups"]
    assert checkpoint.state == made["state"]


def make_states(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(5, 3, generator=generator)
    average = torch.randn(5, 3, generator=generator).bfloat16()
    return {
        "model_state": {"embedding": weight, "head": weight, "norm": torch.ones(3).bfloat16()},
        "optimizer_state": {
            "state": {0: {"step": torch.tensor(float(seed)), "average": average}},
            "param_groups": [{"lr": 0.1 * seed, "betas": (0.9, 0.95), "params": [0]}],
        },
        "state": {"seed": seed, "loss": float("inf"), "place": (1, [2, None]), "läuft": True},
    }
