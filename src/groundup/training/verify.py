"""Prove on the user's machine that an interrupted run ends like an uninterrupted one.

A few steps of a run are trained in scratch folders: once uninterrupted, once killed and resumed.
All metrics except measured times, all weights and the whole optimizer state must be equal bit for
bit. For a timed run, the second replays the progress that the first recorded.
"""

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from groundup.checkpoint import CheckpointFolder
from groundup.checkpoint.record import pack
from groundup.config import load_settings, save_yaml
from groundup.errors import ConfigError, GroundupError
from groundup.files import read_json_lines
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.training.clock import Clock, ReplayClock
from groundup.training.metrics import MEASURED, AfterStep

_log = logging.getLogger(__name__)

_CHILD = "import sys; from groundup.training.verify import _train_part; _train_part(sys.argv[1])"


@dataclass(frozen=True)
class Comparison:
    """What was compared, and every difference."""

    num_records: int
    num_values: int
    """Numbers and tensors of the newest checkpoint."""
    differences: list[str]


def verify_resume(run_folder: str | os.PathLike[str], num_steps: int = 8) -> Comparison:
    """Train some steps with and without a kill and compare the bits; the run is not changed."""
    run = RunFolder(run_folder)
    config = run.read_config()
    if not 4 <= num_steps <= (config.num_steps or num_steps):
        raise ConfigError(f"num_steps is {num_steps}: give 4 or more, at most {config.num_steps}")
    with tempfile.TemporaryDirectory(prefix="groundup-verify-") as folder:
        settings, whole = Path(folder, "settings.yaml"), Path(folder, "whole")
        folders = config.data.folders if config.data.mix else {}
        scratch = {
            "runs_folder": folder,
            "data.shards": config.data.shards.absolute(),
            "data.mix": [f"{path.absolute()}={weight}" for path, weight in folders.items()],
            "data.tokenizer": run.tokenizer_file.absolute(),
            "evaluation.every_steps": num_steps // 2,
            "evaluation.num_windows": 16,
            "checkpoints.every_steps": num_steps // 2,
            "logging.every_steps": 1,
            "samples.every_steps": 0,
        }
        save_yaml(settings, load_settings(RunConfig, run.config_file, scratch))
        _log.info("%d uninterrupted steps", num_steps)
        _train(settings, "whole", num_steps)
        replayed = None if config.minutes is None else str(whole / "metrics.jsonl")
        kill_at = num_steps // 2 + 1
        _log.info("the same with a kill after step %d", kill_at)
        _train(settings, "killed", num_steps, replayed, kill_at)
        _train(settings, "killed", num_steps, replayed, resume=True)
        return compare_runs(whole, Path(folder, "killed"))


def compare_runs(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> Comparison:
    """Compare all records and the newest checkpoints of two runs, except measured times."""
    folders = RunFolder(one), RunFolder(other)
    records, others = (comparable_records(folder.metrics_file) for folder in folders)
    values, other_values = (_newest_values(folder) for folder in folders)
    differences = [] if len(records) == len(others) else ["the number of records"]
    for first, second in zip(records, others, strict=False):
        differences += [
            f"step {first['step']}: {name} {first.get(name)} against {second.get(name)}"
            for name in {**first, **second}
            if first.get(name) != second.get(name)
        ]
    names = {**values, **other_values}
    differences += [name for name in names if values.get(name) != other_values.get(name)]
    return Comparison(len(records), len(values), differences)


def comparable_records(metrics_file: Path) -> list[dict[str, Any]]:
    """The records of a run without measured metrics."""
    return [
        {name: value for name, value in record.items() if name not in MEASURED}
        for record in read_json_lines(metrics_file)
    ]


def _newest_values(folder: RunFolder) -> dict[str, Any]:
    """Hashes of the newest checkpoint's tensors by name, and the rest as one value."""
    checkpoint = CheckpointFolder(folder.checkpoints).newest()
    # The settings contain the run's name; their other effects show in the values below.
    left_out = {*MEASURED, "settings", "clock"}
    state = {key: one for key, one in checkpoint.state.items() if key not in left_out}
    state |= {"step": checkpoint.step, "model": checkpoint.adapted_state()}
    rest, tensors = pack(state | {"optimizer": checkpoint.optimizer_state()})
    return {name: _hash(tensor) for name, tensor in tensors.items()} | {"no tensor": rest}


def _hash(tensor: torch.Tensor) -> tuple[Any, ...]:
    # Hash bytes, because NaN is not equal to itself.
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return tensor.dtype, tensor.shape, hashlib.sha256(flat.numpy().tobytes()).hexdigest()


def _train(
    settings: Path,
    name: str,
    num_steps: int,
    replayed: str | None = None,
    kill_at: int | None = None,
    resume: bool = False,
) -> None:
    """Train in a child process, which may be killed."""
    part = json.dumps([str(settings), name, num_steps, replayed, kill_at, resume])
    command = [sys.executable, "-c", _CHILD, part]
    done = subprocess.run(command, capture_output=True, text=True)
    expected = 0 if kill_at is None else -signal.SIGKILL
    if done.returncode != expected:
        last = " ".join(done.stderr.splitlines()[-4:])
        raise GroundupError(f"training ended with status {done.returncode}: {last}")


def _train_part(text: str) -> None:
    """Runs in the child process."""
    from groundup.training.loop import train

    settings, name, num_steps, replayed, kill_at, resume = json.loads(text)
    clock = Clock(stop_after=num_steps)
    if replayed is not None:
        clock = ReplayClock(Path(replayed), stop_after=num_steps)

    def kill_in_time(step: int, progress: float) -> None:
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    config = load_settings(RunConfig, settings, {"name": name})
    train(config, resume=resume, callbacks=[AfterStep(kill_in_time)], clock=clock)
