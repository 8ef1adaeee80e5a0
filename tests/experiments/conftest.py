"""Sweeps of very short runs: a tiny base, and a trainer that only writes metrics."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groundup.config import load_settings, save_yaml
from groundup.experiments.spec import SweepConfig, resolve
from groundup.experiments.trials import TrialRecord
from groundup.files import append_json_line
from groundup.runs.config import RunConfig

MakeSpec = Callable[..., SweepConfig]

MODEL = {"vocab_size": 300, "context_length": 16, "d_model": 16, "num_layers": 1, "num_heads": 2}
BASE: dict[str, Any] = {
    "num_steps": 20,
    "batch_size": 2,
    "device": "cpu",
    "num_threads": 1,
    "model": MODEL,
    "schedule": {"warmup_steps": 2},
    "evaluation": {"every_steps": 4, "num_windows": 4},
    "checkpoints": {"every_steps": 4},
    "logging": {"every_steps": 2},
}


def record_of(point: str, seed: int, status: Any, loss: float | None, **more: Any) -> TrialRecord:
    return TrialRecord(f"{point}+seed={seed}", point, status, seed, ranking_loss=loss, **more)


@pytest.fixture
def make_spec() -> MakeSpec:
    """`make_spec(grid=…)`: a resolved sweep based on the tiny run."""

    def make(**changes: Any) -> SweepConfig:
        return resolve(SweepConfig(**{"name": "small", "base": BASE, **changes}))

    return make


@pytest.fixture
def write_run() -> Callable[..., Path]:
    """`write_run(folder, losses)`: a run folder as written by training, with a validation loss on
    every line."""

    def write(
        folder: Path, losses: list[float | None], data: str = "sha256:aa", **settings: Any
    ) -> Path:
        folder.mkdir(parents=True)
        overrides = {"num_steps": len(losses), "device": "cuda", **settings}
        save_yaml(folder / "config.yaml", load_settings(RunConfig, None, overrides))
        command = ["/x/groundup/__main__.py", "train", "--name", folder.name]
        environment: Any = {"device": "NVIDIA H200", "data": {"content": data}, "command": command}
        (folder / "environment.json").write_text(json.dumps(environment))
        for step, loss in enumerate(losses, start=1):
            record: dict[str, Any] = {"step": step, "wall_seconds": 2.0 * step}
            record |= dict.fromkeys(("loss", "validation_loss", "bits_per_byte"), loss)
            record |= {"tokens": 8192 * step, "tokens_per_second": 4096.0, "mfu": 0.25}
            append_json_line(folder / "metrics.jsonl", record | {"memory_bytes": 10**9})
        return folder

    return write
