"""Runs trials, each a process of its own, on the slots there are, until all have ended.

A trial's process dies politely with the runner: it saves, and the next sweep goes on with it.
Which trials there are is the sweep's business; when to stop one early is the watcher's.
"""

import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from groundup.config import save_yaml
from groundup.distributed.remote_process import LOST
from groundup.experiments import die_with_parent
from groundup.experiments.results.run_result import describe_divergence, find_standing
from groundup.experiments.slots import Slot, shared_bytecode
from groundup.experiments.spec import SweepConfig
from groundup.experiments.sweep_folder import SweepFolder
from groundup.experiments.trials import Status, Trial, TrialRecord
from groundup.experiments.watching import Verdict, Watcher
from groundup.files import locked
from groundup.runs.folder import RunFolder
from groundup.runs.metrics_file import read_metrics
from groundup.training.signals import StopRequest

Command = Callable[[Path, bool], list[str]]


class Process(Protocol):
    """What a runner needs of `subprocess.Popen`."""

    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    def wait(self) -> object: ...


StartProcess = Callable[[list[str], Path, Slot], Process]
"""Starts a command, with a file for its output, on a slot."""

# A trial that so many machines died under is given up.
_MOST_LOSSES = 10

_POLL_SECONDS = 0.1

# -P and -S keep this package's folder off the path and save the time of loading what is not used.
_DIE_WITH_PARENT = [sys.executable, "-P", "-S", die_with_parent.__file__]

_log = logging.getLogger(__name__)


def train_command(config_file: Path, resume: bool) -> list[str]:
    """The command line of a trial."""
    command = [sys.executable, "-m", "groundup", "train", "--config", str(config_file)]
    return [*command, "--resume"] if resume else command


@dataclass
class _Running:
    trial: Trial
    slot: Slot
    process: Process
    verdict: Verdict | None = None
    is_told_to_stop: bool = False

    def stop(self) -> None:
        if not self.is_told_to_stop:
            self.process.terminate()
            self.is_told_to_stop = True


class Runner:
    """Keeps the slots busy with trials and records how each ended."""

    def __init__(
        self,
        folder: SweepFolder,
        spec: SweepConfig,
        slots: list[Slot],
        command: Command = train_command,
        start_process: StartProcess | None = None,
    ) -> None:
        self._start_process = start_process or self._start_here
        self._num_losses = Counter[str]()
        self._folder = folder
        self._spec = spec
        self._slots = slots
        self._command = command
        self._watcher = Watcher(spec.prune)
        self._environment = dict(os.environ)

    def run(self, trials: Iterator[Trial]) -> signal.Signals | None:
        """Run all trials, as many at once as there are slots; the signal that stopped it, if any.

        A trial is asked for when there is room for it, and all before it are recorded.
        """
        # Before the first trial starts, for it may be the one that they show to be hopeless.
        for record in self._folder.records().values():
            if record.status == "finished":
                self._watcher.remember(RunFolder(self._folder.runs / record.trial))
        active: list[_Running] = []
        with (
            tempfile.TemporaryDirectory(
                prefix="groundup-bytecode-", ignore_cleanup_errors=True
            ) as bytecode,
            StopRequest("runs under way are saved, to be gone on with") as stop,
        ):
            self._environment = {**os.environ, **shared_bytecode(bytecode)}
            try:
                while True:
                    taken = [running.slot for running in active]
                    for slot in self._slots if stop.signal is None else ():
                        if not any(slot is one for one in taken) and (trial := next(trials, None)):
                            active.append(self._start(trial, slot))
                    if not active:
                        return stop.signal
                    time.sleep(_POLL_SECONDS)
                    for running in list(active):
                        if stop.signal is not None:
                            running.stop()
                        if running.process.poll() is not None:
                            active.remove(running)
                            if self._is_lost(running) and stop.signal is None:
                                active.append(self._start(running.trial, running.slot))
                                continue
                            self._end(running, is_stopping=stop.signal is not None)
                        elif not running.is_told_to_stop:
                            running.verdict = self._watcher.look(running.trial)
                            if running.verdict is not None:
                                running.stop()
            finally:
                for running in active:
                    running.process.kill()
                    running.process.wait()

    def _start(self, trial: Trial, slot: Slot) -> _Running:
        run_folder = RunFolder(trial.config.run_folder)
        if _is_held(run_folder.path):
            _log.info("%s: its process of an earlier sweep is still saving; waiting", trial.name)
            while _is_held(run_folder.path):
                time.sleep(_POLL_SECONDS)
        config_file = self._folder.trials / f"{trial.name}.yaml"
        save_yaml(config_file, trial.config)
        resume = run_folder.has_run()
        command = self._command(config_file, resume)
        if self._spec.minutes is not None:
            if resume:
                # Its steps were resolved when it began, and its folder alone knows them.
                command = self._command(run_folder.config_file, resume)
            else:
                command += trial.budget_flags(self._spec.minutes)
        _log.info("%s %s on %s", "going on with" if resume else "running", trial.name, slot.name)
        process = self._start_process(command, self._folder.output_file(trial.name), slot)
        return _Running(trial, slot, process)

    def _start_here(self, command: list[str], output: Path, slot: Slot) -> Process:
        with open(output, "ab") as file:
            return subprocess.Popen(
                [*_DIE_WITH_PARENT, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**self._environment, **slot.environment},
                # Ctrl-C reaches the sweep alone, which then asks its trials to save and stop.
                start_new_session=True,
            )

    def _is_lost(self, running: _Running) -> bool:
        """Whether the machine died under a trial, which then goes on from its last checkpoint."""
        if running.process.returncode != LOST or running.verdict is not None:
            return False
        name = running.trial.name
        self._num_losses[name] += 1
        _log.warning("the machine of %s died", name)
        return self._num_losses[name] <= _MOST_LOSSES

    def _end(self, running: _Running, *, is_stopping: bool) -> None:
        trial, status = running.trial, running.process.returncode or 0
        if is_stopping and running.verdict is None and status != 0:
            return
        record = self._record(trial, status, running.verdict)
        self._folder.add_record(record)
        if record.status == "finished":
            self._watcher.remember(RunFolder(trial.config.run_folder))
        if self._spec.keep_checkpoints == "none" and record.status != "failed":
            self._folder.remove_checkpoints(trial.name)
        _log.info("%s", describe_end(record))

    def _record(self, trial: Trial, status: int, verdict: Verdict | None) -> TrialRecord:
        folder = RunFolder(trial.config.run_folder)
        metrics = read_metrics(folder.metrics_file)
        num_steps = trial.find_num_steps()
        best = metrics.lowest("validation_loss")
        ending: tuple[Status, str | None] = "finished", None
        is_late = verdict is not None and verdict[0] == "pruned" and status == 0
        if verdict is not None and not is_late:
            ending = verdict
        elif find_standing(folder, metrics, num_steps).state == "diverged":
            ending = "diverged", describe_divergence(metrics)
        elif status != 0:
            ending = "failed", self._reason(trial, status)
        return TrialRecord(
            trial=trial.name,
            point=trial.point,
            status=ending[0],
            seed=trial.config.seed,
            settings=dict(trial.settings),
            variant=trial.variant,
            reason=ending[1],
            step=int(metrics.last("step") or 0),
            num_steps=num_steps or 0,
            tokens=int(metrics.last("tokens") or 0),
            loss=metrics.last("loss"),
            loss_at_end=metrics.at_end("loss"),
            validation_loss=metrics.last("validation_loss"),
            best_validation_loss=None if best is None else best[0],
            bits_per_byte=metrics.at_lowest("bits_per_byte", by="validation_loss"),
            wall_seconds=metrics.last("wall_seconds"),
        )

    def _reason(self, trial: Trial, status: int) -> str:
        """The error that the trial printed, or at least how its process ended."""
        output = self._folder.output_file(trial.name)
        lines = output.read_text("utf-8", "replace").splitlines()[-50:]
        errors = [line for line in lines if line.startswith("error: ")]
        if errors:
            return errors[-1].removeprefix("error: ")
        if status == LOST:
            return f"{_MOST_LOSSES + 1} machines died under it"
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        return f"its process ended with {how}: see {output}"


def describe_end(record: TrialRecord) -> str:
    """One line about a trial that ended."""
    loss = record.ranking_loss
    told = "" if loss is None else f", loss {loss:.4f}"
    reason = f": {record.reason}" if record.reason else ""
    return f"{record.trial} {record.status} at step {record.step:,}{told}{reason}"


def _is_held(run_folder: Path) -> bool:
    """Does a trainer hold the folder? None but this sweep starts one there, so to try is safe."""
    try:
        with locked(run_folder) as is_free:
            return not is_free
    except FileNotFoundError:
        return False
