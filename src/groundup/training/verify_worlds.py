"""The proof, on the user's own machine, that any number of processes gives the same bits.

With the settings of a run, a few steps are trained in scratch folders by each number of ranks, and
once more by a run that moves from one number to the next and is killed each time.
"""

import itertools
import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from groundup.errors import ConfigError
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runtime import count_of, num_cores
from groundup.training.execution import resolve_device
from groundup.training.verify import (
    Comparison,
    check_status,
    child_command,
    compare_runs,
    scratch_config,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorldReport:
    """How the check went: every number of ranks against the first of them."""

    num_steps: int
    worlds: tuple[int, ...]
    micro_batch_size: int
    comparisons: dict[str, Comparison]
    """By what was compared with the first."""

    @property
    def is_exact(self) -> bool:
        return not any(found.differences for found in self.comparisons.values())

    def describe(self) -> str:
        """One line with the outcome."""
        for name, found in self.comparisons.items():
            if found.differences:
                count = len(found.differences)
                word = "difference" if count == 1 else "differences"
                return f"Not exact: {name} has {count} {word}, {found.differences[0]}"
        found = next(iter(self.comparisons.values()))
        return (
            f"Exact: {_listed(self.worlds)} ranks, and a run that moved {_moves(self.worlds)} with "
            f"{count_of(len(self.worlds), 'kill')}, are identical after {self.num_steps} steps in "
            f"micro-batches of {self.micro_batch_size}, in all {found.num_records} records and "
            f"{found.num_values} values and tensors of the checkpoint"
        )


def verify_worlds(
    run_folder: str | os.PathLike[str],
    worlds: Sequence[int],
    num_steps: int = 8,
    scratch: Path | None = None,
) -> WorldReport:
    """Train `num_steps` steps of a run with each number of ranks, and with all of them in turn.

    run_folder: of the run, which is left alone.
    worlds: the numbers of ranks.
    num_steps: how many steps each takes.
    scratch: where the runs go, a temporary folder by default.
    """
    run = RunFolder(run_folder)
    config = _prepared(resolve_device(run.read_config()), worlds)
    legs = [*worlds, worlds[0]]
    every_steps = num_steps // len(legs)
    if every_steps < 2 or num_steps > config.num_steps:
        raise ConfigError(
            f"num_steps is {num_steps}, but {len(legs)} legs, each saved and killed, take at least "
            f"{2 * len(legs)}, and the run in {run.path} has {config.num_steps} in all"
        )
    with tempfile.TemporaryDirectory(prefix="groundup-verify-", dir=scratch) as folder:
        config = scratch_config(config, run, Path(folder), every_steps)
        runs = {world: config.model_copy(update={"name": f"world_{world}"}) for world in worlds}
        for world, whole in runs.items():
            _log.info("%d steps on %s", num_steps, count_of(world, "rank"))
            _train(whole, world, stop_after=num_steps)
        moving = config.model_copy(update={"name": "moving"})
        for number, world in enumerate(legs):
            is_last = number == len(legs) - 1
            killed_step = None if is_last else (number + 1) * every_steps + 1
            end = "to the end" if is_last else f"killed after step {killed_step}"
            began = number * every_steps
            _log.info("on %s from step %d, %s", count_of(world, "rank"), began, end)
            _train(moving, world, stop_after=num_steps, kill_at=killed_step, resume=number > 0)
        first = runs[worlds[0]].run_folder
        compared = {count_of(world, "rank"): runs[world].run_folder for world in worlds[1:]}
        compared[f"the run that moved {_moves(worlds)}"] = moving.run_folder
        comparisons = {name: compare_runs(first, other) for name, other in compared.items()}
    micro_batch_size = config.sequences_in_memory
    return WorldReport(num_steps, tuple(worlds), micro_batch_size, comparisons)


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
) -> None:
    """Train with so many ranks, of which the first may be killed."""
    command = child_command(config, stop_after=stop_after, kill_at=kill_at, resume=resume)
    if world > 1:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*launcher, f"--nproc-per-node={world}", "--no-python", *command]
    environment = {**os.environ, "OMP_NUM_THREADS": str(config.num_threads)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    # torchrun itself is not killed, and says 1 of a rank that was.
    killed = 1 if world > 1 else -signal.SIGKILL
    check_status(done, 0 if kill_at is None else killed)


def _listed(worlds: Sequence[int]) -> str:
    *others, last = map(str, worlds)
    return f"{', '.join(others)} and {last}" if others else last


def _moves(worlds: Sequence[int]) -> str:
    return " -> ".join(map(str, itertools.chain(worlds, worlds[:1])))
