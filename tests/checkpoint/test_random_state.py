"""After restoring, every global generator continues with the same numbers."""

import json
import logging
import random
from typing import Any

import numpy as np
import pytest
import torch

from groundup.checkpoint import capture_random_state, restore_random_state
from groundup.errors import CheckpointError


def sample() -> list[Any]:
    return [
        [random.random() for _ in range(3)],
        random.gauss(0, 1),
        np.random.standard_normal(3).tolist(),
        np.random.randint(1 << 30, size=700).tolist(),
        torch.randn(5).tolist(),
        torch.randperm(9).tolist(),
    ]


def test_restoring_reproduces_random_numbers() -> None:
    # Gaussian numbers are generated in pairs; the second one is part of the state.
    for _ in range(4):
        text = json.dumps(capture_random_state(), allow_nan=False)
        expected = sample()
        assert sample() != expected
        restore_random_state(json.loads(text))
        assert sample() == expected
        random.gauss(0, 1), np.random.standard_normal(), torch.randn(1)


def test_states_of_missing_devices_are_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda _, device: restored.append(device))
    state = capture_random_state()
    state["cuda"] = [state["torch"]] * 4
    with caplog.at_level(logging.WARNING):
        restore_random_state(state)
    assert restored == [0]
    assert "3 CUDA devices" in caplog.text


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_states_are_restored() -> None:
    torch.randn(3, device="cuda")
    state = json.loads(json.dumps(capture_random_state()))
    assert len(state["cuda"]) == torch.cuda.device_count()
    expected = torch.randn(5, device="cuda")
    restore_random_state(state)
    assert torch.equal(torch.randn(5, device="cuda"), expected)


@pytest.mark.parametrize("name", ["python", "numpy", "torch", "cuda"])
def test_damaged_random_states_are_rejected(name: str) -> None:
    state = capture_random_state()
    before = sample()
    restore_random_state(state)
    rest = {key: state[key] for key in state if key != name}
    for damaged in (rest, *({**state, name: one} for one in (None, "AAAA", ["not base64!"], 3))):
        with pytest.raises(CheckpointError, match="random state"):
            restore_random_state(damaged)
    restore_random_state(state)
    assert sample() == before
