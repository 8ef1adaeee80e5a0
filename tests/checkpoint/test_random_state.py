"""After restoring, every global generator goes on with the numbers that would have come next."""

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


def test_the_numbers_after_restoring_are_those_after_capturing() -> None:
    # Of Gaussian numbers two are made at once; the second may wait.
    for _ in range(4):
        text = json.dumps(capture_random_state(), allow_nan=False)
        expected = sample()
        assert sample() != expected
        restore_random_state(json.loads(text))
        assert sample() == expected
        random.gauss(0, 1), np.random.standard_normal(), torch.randn(1)


def test_states_of_devices_that_are_not_here_are_named(
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
def test_cuda_devices_go_on_too() -> None:
    torch.randn(3, device="cuda")
    state = json.loads(json.dumps(capture_random_state()))
    assert len(state["cuda"]) == torch.cuda.device_count()
    expected = torch.randn(5, device="cuda")
    restore_random_state(state)
    assert torch.equal(torch.randn(5, device="cuda"), expected)


@pytest.mark.parametrize("name", ["python", "numpy", "torch", "cuda"])
def test_a_damaged_state_is_refused(name: str) -> None:
    state = capture_random_state()
    before = sample()
    restore_random_state(state)
    rest = {key: state[key] for key in state if key != name}
    for damaged in (rest, *({**state, name: one} for one in (None, "AAAA", ["not base64!"], 3))):
        with pytest.raises(CheckpointError, match="random state"):
            restore_random_state(damaged)
    restore_random_state(state)
    assert sample() == before
