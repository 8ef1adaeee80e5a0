"""Run trials as child processes, one per slot at a time.

One thread starts, polls and stops them. A restarted sweep waits for the trials of a killed one.
"""

import contextlib
import itertools
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from groundup import disk
from groundup.config import save_yaml
from groundup.experiments.run_result import find_state
from groundup.experiments.spec import SweepConfig
from groundup.experiments.sweep_folder import SweepFolder
from groundup.experiments.trials import Status, Trial, TrialRecord
from groundup.files import discard_folder
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runs.metrics_file import read_metrics
from groundup.runtime import num_cores
from groundup.training.clock import StopRequest

Command = Callable[[Path, bool], list[str]]

_POLL_SECONDS = 0.1

_log = logging.getLogger(__name__)


@dataclass
class _Running:
    trial: Trial
    slot: int
    resume: bool
    process: subprocess.Popen[bytes]
    is_stopping: bool = False

    def came_second(self) -> bool:
        """Whether a process of an earlier sweep began the run first."""
        run = RunFolder(self.trial.config.run_folder)
        is_mistake = self.process.returncode == 2
        return is_mistake and bool(run.is_claimed() or (not self.resume and run.has_run()))


def train_command(config_file: Path, resume: bool) -> list[str]:
    """The command line of a trial."""
    command = [sys.executable, "-m", "groundup", "train", "--config", str(config_file)]
    return [*command, "--resume"] if resume else command


def make_slots(config: RunConfig, jobs: int | None = None) -> list[dict[str, str]]:
    """Environment variables of each concurrent trial. jobs: default: one per CUDA device, or one
    on a CPU."""
    devices = _cuda_devices() if config.device in ("auto", "cuda") else []
    if devices:
        names = [devices[number % len(devices)] for number in range(jobs or len(devices))]
        return [{"CUDA_VISIBLE_DEVICES": name} for name in names]
    if jobs is None or jobs == 1:
        return [{}]
    # Trials on one CPU divide its cores.
    return [{"OMP_NUM_THREADS": str(max(1, num_cores() // jobs))} for _ in range(jobs)]


class Runner:
    """Runs trials in all slots and records their results."""

    def __init__(
        self,
        folder: SweepFolder,
        spec: SweepConfig,
        slots: list[dict[str, str]],
        command: Command = train_command,
    ) -> None:
        self._folder = folder
        self._spec = spec
        self._slots = slots
        self._command = command

    def run(self, trials: Iterator[Trial]) -> signal.Signals | None:
        """Run all trials; return the signal that stopped them, if any. The next trial is taken from
        the iterator when a slot is free, after earlier results have been recorded."""
        active: list[_Running] = []
        waiting: list[Trial] = []
        with StopRequest("saving the running trials") as stop:
            try:
                while True:
                    taken = {running.slot for running in active}
                    for slot in range(len(self._slots)):
                        if slot not in taken and stop.signal is None:
                            trial = _next_free(waiting, trials)
                            active += [] if trial is None else [self._start(trial, slot)]
                    if not active and not (waiting and stop.signal is None):
                        return stop.signal
                    time.sleep(_POLL_SECONDS)
                    for running in list(active):
                        if stop.signal is not None and not running.is_stopping:
                            running.process.terminate()
                            running.is_stopping = True
                        if running.process.poll() is not None:
                            active.remove(running)
                            if running.came_second():
                                waiting.append(running.trial)
                                continue
                            self._end(running, is_stopped=stop.signal is not None)
            finally:
                for running in active:
                    running.process.kill()
                    running.process.wait()

    def _start(self, trial: Trial, slot: int) -> _Running:
        config_file = self._folder.trials / f"{trial.name}.yaml"
        save_yaml(config_file, trial.config)
        resume = RunFolder(trial.config.run_folder).has_run()
        command = self._command(config_file, resume)
        _log.info("%s %s", "resuming" if resume else "running", trial.name)
        output = self._folder.trials / f"{trial.name}.txt"
        with disk.open_stream(output, append=True) as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._slots[slot]},
                # Ctrl-C reaches only the sweep, which then tells its trials to save and stop.
                start_new_session=True,
            )
        return _Running(trial, slot, resume, process)

    def _end(self, running: _Running, *, is_stopped: bool) -> None:
        trial, status = running.trial, running.process.returncode or 0
        if is_stopped and status != 0:
            return
        record = self._record(trial, status)
        self._folder.add_record(record)
        if self._spec.keep_checkpoints == "none" and record.status != "failed":
            with contextlib.suppress(OSError):
                discard_folder(RunFolder(trial.config.run_folder).checkpoints)
        reason = f": {record.reason}" if record.reason else ""
        _log.info("%s %s at step %d%s", trial.name, record.status, record.step, reason)

    def _record(self, trial: Trial, status: int) -> TrialRecord:
        folder = RunFolder(trial.config.run_folder)
        metrics = read_metrics(folder.metrics_file)
        best = metrics.lowest("validation_loss")
        result: tuple[Status, str | None] = "finished", None
        found = find_state(folder, metrics, trial.config.num_steps)
        if found.state == "diverged":
            result = "diverged", found.reason
        elif status != 0:
            result = "failed", self._reason(trial, status)
        return TrialRecord(
            trial=trial.name,
            point=trial.point,
            status=result[0],
            seed=trial.config.seed,
            settings=dict(trial.settings),
            variant=trial.variant,
            reason=result[1],
            step=int(metrics.last("step") or 0),
            ranking_loss=metrics.at_end("loss") if best is None else best[0],
        )

    def _reason(self, trial: Trial, status: int) -> str:
        """The trial's error message, or how its process ended."""
        output = self._folder.trials / f"{trial.name}.txt"
        lines = output.read_text("utf-8", "replace").splitlines()[-50:]
        errors = [line for line in lines if line.startswith("error: ")]
        if errors:
            return errors[-1].removeprefix("error: ")
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        return f"its process ended with {how}: see {output}"


def _next_free(waiting: list[Trial], trials: Iterator[Trial]) -> Trial | None:
    """The next trial whose folder is not locked by a process of an earlier sweep."""
    for trial in itertools.chain(list(waiting), trials):
        with contextlib.suppress(ValueError):
            waiting.remove(trial)
        if not RunFolder(trial.config.run_folder).is_claimed():
            return trial
        waiting.append(trial)
    return None


def _cuda_devices() -> list[str]:
    """The CUDA_VISIBLE_DEVICES name of each device."""
    import torch

    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(count)]
    return names[:count]
