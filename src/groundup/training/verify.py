"""The proof, on the user's own machine, that an interrupted run ends as an uninterrupted one.

With the settings of a run, a few steps are trained twice in scratch folders: once in one go, and
once with a process that is killed on the way and another that resumes. All metrics that do not
come from a clock, all weights and the whole optimizer state must be equal to the last bit.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from groundup.checkpoint import CheckpointFolder
from groundup.config import load_settings, save_yaml
from groundup.errors import ConfigError, GroundupError
from groundup.files import read_json_lines
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runtime import is_first_rank
from groundup.training.execution import resolve_device
from groundup.training.metrics import MEASURED

_log = logging.getLogger(__name__)

_CHILD = "import sys; from groundup.training.verify import _train_part; _train_part(sys.argv[1:])"


@dataclass(frozen=True)
class Comparison:
    """What was compared of two runs, and everything that differs."""

    num_records: int
    num_values: int
    differences: list[str]


@dataclass(frozen=True)
class ResumeReport:
    """How the check went: `num_steps` against a kill after `killed_step` and a resume."""

    num_steps: int
    saved_step: int
    killed_step: int
    comparison: Comparison
    is_deterministic: bool
    """Whether the run's settings promise equality: on CUDA only in deterministic mode."""

    @property
    def is_exact(self) -> bool:
        return not self.comparison.differences

    def describe(self) -> str:
        """One line with the outcome, and what to do where it is not the one hoped for."""
        found = self.comparison
        if self.is_exact:
            return (
                f"Exact: killed after step {self.killed_step}, resumed from {self.saved_step}, "
                f"identical to {self.num_steps} uninterrupted steps in all {found.num_records} "
                f"records and {found.num_values} values and tensors of the checkpoint"
            )
        hint = "" if self.is_deterministic else "; on CUDA set deterministic to true for equality"
        count = len(found.differences)
        word = "difference" if count == 1 else "differences"
        return f"Not exact: {count} {word}, {found.differences[0]}{hint}"


def verify_resume(
    run_folder: str | os.PathLike[str], num_steps: int = 8, scratch: Path | None = None
) -> ResumeReport:
    """Train `num_steps` steps of the run in `run_folder` with and without a kill; compare the bits.

    The run itself is left alone. `scratch` is where the two runs go, a temporary folder by default.
    """
    if num_steps < 4:
        raise ConfigError(f"num_steps is {num_steps}, but saving, a kill and a resume take 4")
    run = RunFolder(run_folder)
    config = run.read_config()
    if num_steps > config.num_steps:
        raise ConfigError(
            f"num_steps is {num_steps}, but the run in {run.path} has {config.num_steps} in all"
        )
    # Here rather than in a process of its own: the reason is then the whole error.
    resolve_device(config)
    saved_step = num_steps // 2
    killed_step = saved_step + 1
    with tempfile.TemporaryDirectory(prefix="groundup-verify-", dir=scratch) as folder:
        config = scratch_config(config, run, Path(folder), saved_step)
        whole, parted = (config.model_copy(update={"name": name}) for name in ("whole", "parted"))
        _log.info("1 of 3: %d steps without a stop", num_steps)
        _run_part(whole, stop_after=num_steps)
        _log.info("2 of 3: the same steps, killed after step %d", killed_step)
        _run_part(parted, stop_after=num_steps, kill_at=killed_step)
        _log.info("3 of 3: resumed from step %d", saved_step)
        _run_part(parted, stop_after=num_steps, resume=True)
        comparison = compare_runs(whole.run_folder, parted.run_folder)
    return ResumeReport(
        num_steps=num_steps,
        saved_step=saved_step,
        killed_step=killed_step,
        comparison=comparison,
        is_deterministic=config.deterministic or not config.device.startswith("cuda"),
    )


def compare_runs(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> Comparison:
    """Compare all records and the newest checkpoints of two runs, clocks left out."""
    folders = RunFolder(one), RunFolder(other)
    records, others = (comparable_records(folder.metrics_file) for folder in folders)
    values, other_values = (_newest_values(folder) for folder in folders)
    differences = []
    if len(records) != len(others):
        differences.append(f"{len(records)} records against {len(others)}")
    for first, second in zip(records, others, strict=False):
        differences += [
            f"step {first['step']}: {name} {first.get(name)} against {second.get(name)}"
            for name in {**first, **second}
            if first.get(name) != second.get(name)
        ]
    differences += [
        f"{name} differs"
        for name in {**values, **other_values}
        if name not in values
        or name not in other_values
        or not _is_equal(values[name], other_values[name])
    ]
    return Comparison(len(records), len(values), differences)


def comparable_records(metrics_file: Path) -> list[dict[str, Any]]:
    """The records of a run without the metrics that the machine decides."""
    return [
        {name: value for name, value in record.items() if name not in MEASURED}
        for record in read_json_lines(metrics_file)
    ]


def _newest_values(folder: RunFolder) -> dict[str, Any]:
    """Every number and tensor of the newest checkpoint by name."""
    checkpoint = CheckpointFolder(folder.checkpoints).newest()
    # The settings hold the run's name, and what else they say shows in everything below.
    left_out = {*MEASURED, "settings"}
    parts = {
        "step": checkpoint.step,
        "model": checkpoint.adapted_state(),
        "optimizer": checkpoint.optimizer_state(),
        "state": {name: value for name, value in checkpoint.state.items() if name not in left_out},
    }
    return dict(_leaves(parts, ""))


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict | list | tuple):
        yield name, value
        return
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield from _leaves(item, f"{name}.{key}" if name else str(key))


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        is_alike = one.dtype == other.dtype and one.shape == other.shape
        # As bytes, because NaN is not equal to itself.
        return is_alike and torch.equal(_bytes(one), _bytes(other))
    return bool(one == other)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def scratch_config(config: RunConfig, run: RunFolder, folder: Path, saved_step: int) -> RunConfig:
    """The same training, with lines, evaluations and checkpoints dense enough for few steps.

    config, run: what is trained.
    folder: where it is to be trained.
    saved_step: how often it is to be saved.
    """
    sections: dict[str, dict[str, Any]] = {
        "data": {
            "shards": config.data.shards.absolute(),
            "mix": tuple(
                f"{path.absolute()}={weight}"
                for path, weight in (config.data.folders if config.data.mix else {}).items()
            ),
            "tokenizer": run.tokenizer_file.absolute(),
        },
        "evaluation": {"every_steps": saved_step, "num_windows": 16},
        "checkpoints": {"every_steps": saved_step, "keep_last": 2},
        "logging": {"every_steps": 1, "tensorboard": False, "wandb": False, "trackio": False},
        "samples": {"every_steps": 0},
    }
    changed = {
        name: getattr(config, name).model_copy(update=values) for name, values in sections.items()
    }
    return config.model_copy(update={"runs_folder": folder.absolute(), **changed})


def child_command(
    config: RunConfig, *, stop_after: int, kill_at: int | None = None, resume: bool = False
) -> list[str]:
    """What trains in a process of its own, which a kill ends for good.

    config: of the run, whose settings are written beside it.
    stop_after: the last step.
    kill_at: the step behind which it kills itself.
    resume: whether the run has begun.
    """
    settings = config.runs_folder / f"{config.name}.yaml"
    save_yaml(settings, config)
    part = {"stop_after": stop_after, "kill_at": kill_at, "resume": resume}
    return [sys.executable, "-c", _CHILD, str(settings), json.dumps(part)]


def check_status(done: subprocess.CompletedProcess[str], expected: int) -> None:
    """Raise if a process that trained did not end as it was to.

    done: the process.
    expected: its status.
    """
    if done.returncode != expected:
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        raise GroundupError(
            f"a process that trained for the check ended with status {done.returncode} instead of "
            f"{expected}: {' '.join(errors or done.stderr.splitlines()[-4:])}"
        )


def _run_part(
    config: RunConfig, *, stop_after: int, kill_at: int | None = None, resume: bool = False
) -> None:
    command = child_command(config, stop_after=stop_after, kill_at=kill_at, resume=resume)
    done = subprocess.run(command, capture_output=True, text=True)
    check_status(done, 0 if kill_at is None else -signal.SIGKILL)


def _train_part(arguments: list[str]) -> None:
    """What the process runs."""
    from groundup.training.loop import train

    config = load_settings(RunConfig, arguments[0])
    part = json.loads(arguments[1])

    def kill_in_time(step: int, num_steps: int | None) -> None:
        if step == part["kill_at"] and is_first_rank():
            os.kill(os.getpid(), signal.SIGKILL)

    train(config, resume=part["resume"], stop_after=part["stop_after"], progress=kill_in_time)
