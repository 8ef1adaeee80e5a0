"""Sweeps of runs that take a moment: a tiny base, and a trainer that only writes figures."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groundup.experiments.runner import Command
from groundup.experiments.spec import SweepConfig, resolve

MakeSpec = Callable[..., SweepConfig]

BASE: dict[str, Any] = {
    "num_steps": 20,
    "batch_size": 2,
    "device": "cpu",
    "num_threads": 1,
    "model": {
        "vocab_size": 300,
        "context_length": 16,
        "d_model": 16,
        "num_layers": 1,
        "num_heads": 2,
    },
    "schedule": {"warmup_steps": 2},
    "evaluation": {"every_steps": 4, "num_windows": 4},
    "checkpoints": {"every_steps": 4},
    "logging": {"every_steps": 2},
}


@pytest.fixture
def make_spec() -> MakeSpec:
    """`make_spec(grid=…)`: a resolved sweep around the tiny base."""

    def make(**changes: Any) -> SweepConfig:
        return resolve(SweepConfig(**{"name": "small", "base": BASE, **changes}))

    return make


@pytest.fixture
def figures_only() -> Command:
    """The command of a trial that writes metrics.jsonl as a formula gives them, and no weights."""
    script = Path(__file__).with_name("figures_only.py")

    def command(config_file: Path, resume: bool) -> list[str]:
        return [sys.executable, str(script), str(config_file), *(["--resume"] if resume else [])]

    return command
