"""The proof, on the user's own machine, that an interrupted run ends as an uninterrupted one, and
that any number of processes gives the same bits.

With the settings of a run, a few steps are trained in scratch folders: in one go by each number of
ranks, and by a run that is killed on the way, from one number to the next, and resumed. All metrics
that do not come from a clock, all weights and the whole optimizer state must be equal to the last
bit.
"""

import itertools
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
    every_steps: int
    """A checkpoint comes so often, and a kill a step later."""
    worlds: tuple[int, ...]
    """The numbers of ranks that were asked for; none for the run as it is."""
    config: RunConfig
    comparisons: dict[str, Comparison]
    """By what was compared with the first."""

    @property
    def is_exact(self) -> bool:
        return not any(found.differences for found in self.comparisons.values())

    def describe(self) -> str:
        """One line with the outcome, and what to do where it is not the one hoped for."""
        for name, found in self.comparisons.items():
            if found.differences:
                has = f"{name} has " if self.worlds else ""
                count = count_of(len(found.differences), "difference")
                may_differ = self.config.device.startswith("cuda") and not self.config.deterministic
                hint = "; on CUDA set deterministic to true for equality" if may_differ else ""
                return f"Not exact: {has}{count}, {found.differences[0]}{hint}"
        what = (
            f"killed after step {self.every_steps + 1}, resumed from {self.every_steps}, "
            f"identical to {self.num_steps} uninterrupted steps"
        )
        if self.worlds:
            *others, last = map(str, self.worlds)
            what = (
                f"{', '.join(others)}{' and ' if others else ''}{last} ranks, and a run that moved "
                f"{_moves(self.worlds)} with {count_of(len(self.worlds), 'kill')}, are identical "
                f"after {self.num_steps} steps in micro-batches of "
                f"{self.config.sequences_in_memory},"
            )
        return (
            f"Exact: {what} in all {found.num_records} records and {found.num_values} values and "
            f"tensors of the checkpoint"
        )


def verify_resume(
    run_folder: str | os.PathLike[str], num_steps: int = 8, worlds: Sequence[int] = ()
) -> ResumeReport:
    """Train `num_steps` steps of a run with and without kills; compare the bits.

    run_folder: of the run, which is left alone.
    num_steps: how many steps each takes.
    worlds: numbers of ranks to train with, and to move between at the kills.
    """
    run = RunFolder(run_folder)
    # Here rather than in a process of its own: the reason is then the whole error.
    config = resolve_device(run.read_config())
    if worlds:
        config = _prepared(config, worlds)
    legs = [*worlds, worlds[0]] if worlds else [1, 1]
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
        replayed = None
        for world, whole in runs.items():
            _log.info("%d steps on %s", num_steps, count_of(world, "rank"))
            _train(whole, world, stop_after=num_steps, replayed=replayed)
            if config.minutes is not None:
                # The others have its progress, which the clock gave it.
                replayed = RunFolder(runs[first].run_folder).metrics_file
        moving = config.model_copy(update={"name": "moving"})
        for number, world in enumerate(legs):
            is_last = number == len(legs) - 1
            killed_step = None if is_last else (number + 1) * every_steps + 1
            end = "to the end" if is_last else f"killed after step {killed_step}"
            began = number * every_steps
            _log.info("on %s from step %d, %s", count_of(world, "rank"), began, end)
            _train(
                moving,
                world,
                stop_after=num_steps,
                kill_at=killed_step,
                resume=number > 0,
                replayed=replayed,
            )
        compared = {count_of(world, "rank"): runs[world].run_folder for world in others}
        compared[f"the run that moved {_moves(worlds)}"] = moving.run_folder
        comparisons = {
            name: compare_runs(runs[first].run_folder, other) for name, other in compared.items()
        }
    return ResumeReport(num_steps, every_steps, tuple(worlds), config, comparisons)


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


def _prepared(config: RunConfig, worlds: Sequence[int]) -> RunConfig:
    """Settings that all numbers of ranks can have in common."""
    if min(worlds, default=0) < 1:
        raise ConfigError(f"--world {' '.join(map(str, worlds))}: give numbers of ranks, 1 or more")
    for world in worlds:
        if config.batch_size % world:
            raise ConfigError(
                f"batch_size {config.batch_size} of the run cannot be divided among {world} ranks"
            )
    rows = [config.batch_size // world for world in worlds]
    micro_batch_size = math.gcd(*rows, config.sequences_in_memory)
    num_threads = config.num_threads or max(1, num_cores() // max(worlds))
    exact = config.distributed.model_copy(update={"strategy": "ddp", "reduction": "exact"})
    changes = {
        "micro_batch_size": micro_batch_size,
        "num_threads": num_threads,
        "distributed": exact,
        "deterministic": config.deterministic or config.device.startswith("cuda"),
    }
    return config.model_copy(update=changes)


def _train(
    config: RunConfig,
    world: int,
    *,
    stop_after: int,
    kill_at: int | None = None,
    resume: bool = False,
    replayed: Path | None = None,
) -> None:
    """Train in processes of their own, so many ranks, of which the first may be killed."""
    settings = config.runs_folder / f"{config.name}.yaml"
    save_yaml(settings, config)
    part = {"stop_after": stop_after, "kill_at": kill_at, "resume": resume}
    part["replayed"] = None if replayed is None else str(replayed)
    killed = settings.with_suffix(".killed")
    killed.unlink(missing_ok=True)
    part["killed"] = str(killed)
    command = [sys.executable, "-c", _CHILD, str(settings), json.dumps(part)]
    if world > 1:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*launcher, f"--nproc-per-node={world}", "--no-python", *command]
    environment = dict(os.environ)
    if config.num_threads:
        environment["OMP_NUM_THREADS"] = str(config.num_threads)
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    # torchrun itself is not killed, and says 1 of a rank that was, as of one that failed.
    expected = 0 if kill_at is None else 1 if world > 1 else -signal.SIGKILL
    if done.returncode != expected or killed.exists() != (kill_at is not None):
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
    if part["replayed"] is not None:
        clock = ReplayClock(Path(part["replayed"]), stop_after=part["stop_after"])

    def kill_in_time(step: int, progress: float) -> None:
        if step == part["kill_at"] and is_first_rank():
            Path(part["killed"]).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    train(config, resume=part["resume"], callbacks=[AfterStep(kill_in_time)], clock=clock)


def _moves(worlds: Sequence[int]) -> str:
    return " -> ".join(map(str, itertools.chain(worlds, worlds[:1])))
