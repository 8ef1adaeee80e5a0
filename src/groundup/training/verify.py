"""The proof, on the user's own machine, that an interrupted run ends as an uninterrupted one, and
that any number of processes gives the same bits.

With the settings of a run, a few steps are trained in scratch folders: in one go by each number of
ranks, and by a run that is killed on the way, from one number to the next, and resumed. All metrics
that do not come from a clock, all weights and the whole optimizer state must be equal to the last
bit. Of a timed run the first records its progress, and the others replay it.
"""

import json
import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
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
from groundup.runtime import count_of, is_first_rank, num_cores
from groundup.training.callbacks import AfterStep
from groundup.training.clock import Clock, ReplayClock
from groundup.training.metrics import MEASURED
from groundup.training.resolve import resolve_device

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
    """How the check went: every number of ranks, and a run with kills, against the first."""

    num_steps: int
    legs: tuple[int, ...]
    """The numbers of ranks that the killed run moved between."""
    comparisons: dict[str, Comparison]
    """By what was compared with the first."""

    @property
    def is_exact(self) -> bool:
        return not any(found.differences for found in self.comparisons.values())

    def describe(self) -> str:
        """One line with the outcome."""
        for name, found in self.comparisons.items():
            if found.differences:
                count = count_of(len(found.differences), "difference")
                return (
                    f"Not exact: {name} has {count}, {found.differences[0]}; on CUDA set "
                    f"deterministic to true for equality"
                )
        return (
            f"Exact: {self.num_steps} steps with {count_of(len(self.legs) - 1, 'kill')} on "
            f"{' -> '.join(map(str, self.legs))} ranks are identical to uninterrupted ones in all "
            f"{found.num_records} records and {found.num_values} values and tensors of the "
            f"checkpoint"
        )


def verify_resume(
    run_folder: str | os.PathLike[str], num_steps: int = 8, worlds: Sequence[int] = ()
) -> ResumeReport:
    """Train `num_steps` steps of a run, which is left alone, with and without kills; compare bits.

    worlds: numbers of ranks to train with, and to move between at the kills.
    """
    run = RunFolder(run_folder)
    # Here rather than in a process of its own: the reason is then the whole error.
    config = resolve_device(run.read_config())
    if worlds:
        config = _prepared(config, worlds)
    legs = (*worlds, worlds[0]) if worlds else (1, 1)
    every_steps = num_steps // len(legs)
    if every_steps < 2 or num_steps > (config.num_steps or num_steps):
        raise ConfigError(
            f"num_steps is {num_steps}, but {count_of(len(legs) - 1, 'kill')} and as many resumes "
            f"take {2 * len(legs)} or more, and the run in {run.path} has {config.num_steps} in all"
        )
    with tempfile.TemporaryDirectory(prefix="groundup-verify-") as folder:
        config = scratch_config(config, run, Path(folder), every_steps)
        runs = {w: config.model_copy(update={"name": f"world_{w}"}) for w in dict.fromkeys(legs)}
        first, *others = runs
        part: dict[str, Any] = {"stop_after": num_steps, "resume": False, "kill_at": None}
        for world, whole in runs.items():
            _log.info("%d steps on %s", num_steps, count_of(world, "rank"))
            _train(whole, world, part)
            if config.minutes is not None:
                part["replayed"] = str(RunFolder(runs[first].run_folder).metrics_file)
        moving = config.model_copy(update={"name": "moving"})
        for number, world in enumerate(legs):
            is_last = number == len(legs) - 1
            part["kill_at"] = None if is_last else (number + 1) * every_steps + 1
            _log.info("on %s, killed after step %s", count_of(world, "rank"), part["kill_at"])
            _train(moving, world, {**part, "resume": number > 0})
        compared = {count_of(world, "rank"): runs[world].run_folder for world in others}
        compared["the run with kills"] = moving.run_folder
        comparisons = {
            name: compare_runs(runs[first].run_folder, other) for name, other in compared.items()
        }
    return ResumeReport(num_steps, legs, comparisons)


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
        if not _is_equal(values.get(name), other_values.get(name))
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
    left_out = {*MEASURED, "settings", "clock"}
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
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _leaves(item, f"{name}.{key}" if name else str(key))


def _is_equal(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return type(one) is type(other) and bool(one == other)
    is_alike = one.dtype == other.dtype and one.shape == other.shape
    # As bytes, because NaN is not equal to itself.
    flat = [value.detach().cpu().contiguous().reshape(-1) for value in (one, other)]
    return is_alike and torch.equal(*(value.view(torch.uint8) for value in flat))


def scratch_config(config: RunConfig, run: RunFolder, folder: Path, saved_step: int) -> RunConfig:
    """The same training in `folder`, with lines, evaluations and checkpoints dense enough for few
    steps."""
    mix = config.data.folders if config.data.mix else {}
    sections: dict[str, dict[str, Any]] = {
        "data": {
            "shards": config.data.shards.absolute(),
            "mix": tuple(f"{path.absolute()}={weight}" for path, weight in mix.items()),
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


def _prepared(config: RunConfig, worlds: Sequence[int]) -> RunConfig:
    """Settings that all numbers of ranks can have in common."""
    if min(worlds) < 1 or any(config.batch_size % world for world in worlds):
        raise ConfigError(
            f"--world {' '.join(map(str, worlds))}: give numbers of ranks that divide batch_size "
            f"{config.batch_size} of the run"
        )
    rows = [config.batch_size // world for world in worlds]
    changes = {
        "micro_batch_size": math.gcd(*rows, config.sequences_in_memory),
        "num_threads": config.num_threads or max(1, num_cores() // max(worlds)),
        "distributed": config.distributed.model_copy(
            update={"strategy": "ddp", "reduction": "exact"}
        ),
        "deterministic": config.deterministic or config.device.startswith("cuda"),
    }
    return config.model_copy(update=changes)


def _train(config: RunConfig, world: int, part: dict[str, Any]) -> None:
    """Train in processes of their own, so many ranks, of which the first may be killed."""
    settings = config.runs_folder / f"{config.name}.yaml"
    killed = settings.with_suffix(".killed")
    killed.unlink(missing_ok=True)
    save_yaml(settings, config)
    command = [sys.executable, "-c", _CHILD, str(settings), json.dumps(part), str(killed)]
    if world > 1:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*launcher, f"--nproc-per-node={world}", "--no-python", *command]
    threads = {"OMP_NUM_THREADS": str(config.num_threads)} if config.num_threads else {}
    environment = {**os.environ, **threads}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    # torchrun itself is not killed, and says 1 of a rank that was, as of one that failed.
    is_killed = part["kill_at"] is not None
    expected = 0 if not is_killed else 1 if world > 1 else -signal.SIGKILL
    if done.returncode != expected or killed.exists() != is_killed:
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        raise GroundupError(
            f"a process that trained for the check ended with status {done.returncode} instead of "
            f"{expected}: {' '.join(errors or done.stderr.splitlines()[-4:])}"
        )


def _train_part(arguments: list[str]) -> None:
    """What the process runs."""
    from groundup.training.loop import train

    config = load_settings(RunConfig, arguments[0])
    part = json.loads(arguments[1])
    clock = Clock(stop_after=part["stop_after"])
    if "replayed" in part:
        clock = ReplayClock(Path(part["replayed"]), stop_after=part["stop_after"])

    def kill_in_time(step: int, progress: float) -> None:
        if step == part["kill_at"] and is_first_rank():
            Path(arguments[2]).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    train(config, resume=part["resume"], callbacks=[AfterStep(kill_in_time)], clock=clock)
