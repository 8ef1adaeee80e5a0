"""The training loop: batches in, steps, metrics, evaluations, samples and checkpoints out.

What each of these does lives in a file of its own; here is when, and in which order. A step that
is followed by nothing but a log line is finished while the device computes the next one.
"""

import contextlib
import datetime
import functools
import gc
import logging
import signal
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from groundup.checkpoint import capture_random_state, restore_random_state
from groundup.config import flatten, save_yaml
from groundup.data.batches.windows import Ids
from groundup.distributed.process_group import (
    LostRankError,
    World,
    find_world,
    lost_ranks_named,
    open_world,
)
from groundup.errors import ConfigError, GroundupError
from groundup.model import TransformerLM
from groundup.optim.build import average_decay
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runs.outcome import Outcome, State
from groundup.runtime import Progress, count_of, format_duration
from groundup.training.budget import TimeBudget, WriteSample, with_decided_length
from groundup.training.execution import (
    autocast,
    resolve,
    resolve_device,
    switches,
    with_micro_batch_of,
)
from groundup.training.failures import describe_divergence, memory_advice
from groundup.training.metrics import TASK_PREFIX, Meter, MetricsWriter, learning_rate_of
from groundup.training.own_parts import Loss, OwnParts
from groundup.training.refit import Refit
from groundup.training.run_data import RunData
from groundup.training.saving import Saver
from groundup.training.setup import OpenRun, open_run
from groundup.training.signals import StopRequest
from groundup.training.step import QueuedStep, choose_step
from groundup.training.timetable import Timetable

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainSummary:
    """Where a run stands when `train` returns."""

    run_folder: Path
    steps: int
    num_steps: int
    tokens: int
    num_skipped: int
    loss: float | None
    validation_loss: float | None
    bits_per_byte: float | None
    best_validation_loss: float | None
    wall_seconds: float
    stopped_by: str | None = None
    """The signal that ended it early, if one did."""

    @property
    def is_finished(self) -> bool:
        return self.steps >= self.num_steps

    def describe(self) -> str:
        """One line that says how the run ended and how to continue it."""
        took = format_duration(self.wall_seconds)
        if self.is_finished:
            return (
                f"done: {count_of(self.steps, 'step')} in {took}; the run is in {self.run_folder}"
            )
        return (
            f"stopped after step {self.steps:,} of {self.num_steps:,} and saved in "
            f"{self.run_folder}; continue with the same command and --resume"
        )


def train(
    config: RunConfig,
    *,
    model: TransformerLM | None = None,
    dataset: Ids | None = None,
    validation: Ids | None = None,
    loss: Loss | None = None,
    resume: bool = False,
    allow_changes: bool = False,
    write_sample: WriteSample | None = None,
    progress: Progress | None = None,
    stop_after: int | None = None,
    budget: TimeBudget | None = None,
    choose_length: Callable[[RunConfig, RunData], RunConfig] | None = None,
    measured: Collection[str] = (),
) -> TrainSummary:
    """Train a run from its first step, or with `resume` from its newest checkpoint, to its last.

    Processes that torchrun started train it together, and must be given the same settings.

    config: all settings; a run without a name gets one from the time.
    model: learns instead of a new one of the settings; its layers may be swapped.
    dataset, validation: ids to learn from and to validate with instead of the shards: an array, a
        memory map, or what `open_shards` returns.
    loss: given the model, inputs and targets, the mean loss to learn by. Validation losses are
        cross-entropies all the same. A resume needs the same model, dataset and loss again.
    allow_changes: accept settings that differ from those the run began with, an error otherwise.
    write_sample: given the model, the run's tokenizer and a prompt, returns a continuation.
    progress: is told (steps done, all steps) after every step.
    stop_after: ends the run at that step as a signal would: saved, to be resumed.
    budget: num_steps becomes what fits into that time on this machine, measured before the first
        step and again while it trains. A resume keeps what it has become.
    choose_length: gives a new run its number of steps once its data are known.
    measured: the settings, by dotted name, that each process has chosen by measuring its machine:
        those of the first count.
    """
    given = dict(flatten(config.model_dump(mode="json")))
    if config.name is None:
        now = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        config = config.model_copy(update={"name": now})
    own = OwnParts(model, dataset, validation, loss)
    with contextlib.ExitStack() as stack:
        device, minutes = resolve_device(config).device, config.distributed.timeout_minutes
        world = stack.enter_context(open_world(find_world(), device, minutes))
        with world.together():
            # With the clock, or a measurement of the machine, ranks may come to other settings.
            free = set().union(*world.gather(set(measured)))
            same = {name: value for name, value in given.items() if name not in free}
            world.check_same({**same, "--allow-changes": allow_changes})
            config, resume = world.from_first((config, resume))
            folder = RunFolder(config.run_folder)
            if resume and folder.has_run():
                config = with_micro_batch_of(folder.read_config(), config, world)
            config = world.from_first(resolve(own.check(config), world))
        if budget is not None:
            _check_budget(own, world)
        with world.together():
            if world.is_first:
                stack.enter_context(folder.claim(resume=resume))
        if budget is not None and resume:
            config, budget = with_decided_length(config, folder, budget), None
        with world.together():
            record = stack.enter_context(folder.recording(world.rank))
            record.takes_errors = not resume
        stack.enter_context(switches(config))
        stack.enter_context(memory_advice(config))
        refit = None
        if budget is not None:
            refit = Refit(folder.path, budget, write_sample)
            choose_length = refit.choose
        with world.together():
            run = open_run(
                config,
                folder,
                resume=resume,
                allow_changes=allow_changes,
                choose_length=choose_length,
                budget=budget,
                own=own,
                world=world,
            )
        record.takes_errors = True
        for tracker in run.trackers:
            stack.callback(tracker.close)
        training = _Training(run, write_sample, progress, loss, refit)
        record.outcome = training.outcome
        return training.run(stop_after)


class _Training:
    """The loop over one run."""

    def __init__(
        self,
        run: OpenRun,
        write_sample: WriteSample | None,
        progress: Progress | None,
        loss: Loss | None,
        refit: Refit | None,
    ) -> None:
        self._run = run
        self._world = run.state.reduction.world
        config = run.config
        self._state = run.state
        self._write_sample = write_sample
        self._progress = progress
        self._loss = loss
        self._refit = refit
        self._meter = Meter(config, run.state.wall_seconds, run.state.tokens, self._world.size)
        self._metrics = MetricsWriter(config, run.folder.metrics_file, self._meter, run.trackers)
        self._saver = Saver(run.checkpoints, self._metrics, {}, run.resumed_step)
        self._stop = StopRequest()
        self._ending: State = "failed"
        self._use(config)

    def _use(self, config: RunConfig) -> None:
        """Train by these settings, of the run itself or with another length."""
        run, state = self._run, self._state
        self._config = self._metrics.config = config
        self._saver.settings = config.model_dump(mode="json")
        self._timetable = Timetable(
            config,
            can_evaluate=run.evaluator is not None or run.tasks is not None,
            can_sample=self._write_sample is not None,
        )
        state.optimizer.average_decay = average_decay(config.optimizer, config.num_steps)
        if state.local is not None:
            # What gathers the weights cannot be recorded.
            config = config.model_copy(update={"cuda_graph": False})
        self._step = choose_step(config, state.model, state.optimizer, self._loss, state.reduction)

    def run(self, stop_after: int | None) -> TrainSummary:
        """Take all steps up to the last, or `stop_after`, or a signal; save and sum up."""
        loader = self._run.loader
        began = time.monotonic()
        with self._stop, self._saved_if_ranks_are_lost():
            while self._take_steps(stop_after):
                pass
            # The loader is to be ahead of the device always; a user can see whether it is.
            fraction = loader.wait_seconds / max(time.monotonic() - began, 1e-9)
            _log.info(
                "waited for batches: %.2f s, %.1f%% of the time",
                loader.wait_seconds,
                100 * fraction,
            )
            return self._end()

    def _take_steps(self, stop_after: int | None) -> bool:
        """Take all steps of the length that the run has; whether it got another one meanwhile."""
        config, state = self._config, self._state
        last_step = config.num_steps
        if stop_after is not None:
            last_step = min(last_step, stop_after)
        num_steps = max(0, last_step - state.step)
        with self._run.loader.batches(state.step, num_steps) as batches:
            queued: QueuedStep | None = None
            for batch in batches:
                launched = self._step(batch)
                if queued is not None:
                    self._finish(queued)
                queued = launched
                is_look_due = self._is_look_due(launched.step)
                if is_look_due or not self._may_wait(launched.step):
                    self._finish(launched, is_look_due)
                    queued = None
                if self._is_stopped():
                    break
                if self._config is not config:
                    return True
            if queued is not None:
                self._finish(queued)
        return False

    def _is_look_due(self, step: int) -> bool:
        """Is it to be seen after this step whether the length still suits the time?"""
        is_last = step >= self._config.num_steps
        return self._refit is not None and not is_last and self._refit.is_due(step)

    def _is_stopped(self) -> bool:
        """Has a signal asked any rank to stop? All ranks stop after the same step."""
        number = self._world.greatest(self._stop.signal or 0)
        # A signal that came while the ranks asked each other counts after the next step.
        if number:
            self._stop.signal = signal.Signals(number)
        return number != 0

    @contextlib.contextmanager
    def _saved_if_ranks_are_lost(self) -> Iterator[None]:
        """The weights are those of the latest step, and may be all that is left of the run.

        A device with a queue may be on its way to the next step already, of shared weights a part
        is gone, and where ranks share the work of an update some of it may be done.
        """
        try:
            yield
        except LostRankError:
            self._stop.outlast_termination()
            state = self._state
            is_whole = state.local is None and not state.optimizer.is_moving
            if is_whole and not _works_through_a_queue(self._config):
                self._save()
            raise

    def outcome(self) -> Outcome:
        """How the run ended, to be asked when it has."""
        stop_signal = self._stop.signal if self._ending == "stopped" else None
        return Outcome(
            self._ending,
            self._state.step,
            None if stop_signal is None else stop_signal.name,
            {"wall_seconds": round(self._meter.wall_seconds, 3), "tokens": self._state.tokens},
        )

    def _may_wait(self, step: int) -> bool:
        """May the result of a step be read after the next one is queued?

        Not where something looks at the weights in between, nor while steps are being skipped:
        the run must stop before a step too many.
        """
        return (
            _works_through_a_queue(self._config)
            and self._config.max_skipped_steps > 1
            and self._state.num_skipped_in_row == 0
            and not self._timetable.needs_weights(step)
        )

    def _finish(self, queued: QueuedStep, is_look_due: bool = False) -> None:
        """Everything that follows a step, in a fixed order: metrics, evaluation, sample, save."""
        config, state, timetable = self._config, self._state, self._timetable
        result = queued.read()
        state.count_step(result.loss, result.is_skipped)
        if config.model.dropout and not result.is_skipped and not _works_through_a_queue(config):
            state.random_state = capture_random_state(state.model.device)
        metrics: dict[str, Any] = {}
        if result.is_skipped:
            metrics |= {"skipped": True, "reason": result.reason, "batch_starts": self._starts()}
        if result.is_skipped or timetable.is_log_due(state.step):
            metrics["loss"] = result.loss
            metrics["learning_rate"] = learning_rate_of(config, state.step)
            metrics["gradient_norm"] = result.gradient_norm
            metrics |= self._meter.read(state.tokens)
        validation_loss = None
        try:
            if timetable.is_evaluation_due(state.step):
                validation_loss = self._evaluate(metrics)
            if timetable.is_sample_due(state.step):
                self._sample(metrics)
        finally:
            # Also if a rank is lost on the way: the step is saved, and a resume begins behind it.
            if metrics and self._world.is_first:
                self._metrics.write(state, metrics)
        if state.num_skipped_in_row >= config.max_skipped_steps:
            self._give_up(result.reason)
        is_saved = is_look_due and not result.is_skipped and self._look_again(validation_loss)
        if timetable.is_save_due(state.step) and not is_saved:
            self._save(validation_loss)
        if self._progress is not None:
            self._progress(state.step, self._config.num_steps)

    def _look_again(self, validation_loss: float | None) -> bool:
        """Give the run another length where its time asks for it; whether it did and saved that."""
        assert self._refit is not None
        before = self._config
        config = self._refit.look(before, self._state.step, self._meter)
        if config is None:
            return False
        # A recorded step has memory that only a collection gives back before the next is recorded.
        del self._step
        gc.collect()
        self._use(config)
        try:
            # A resume goes on from a checkpoint of the settings that the folder has.
            self._save(validation_loss)
            self._saver.check()
            save_yaml(self._run.folder.config_file, config)
        except (GroundupError, OSError) as error:
            _log.error("the run keeps its %s steps: %s", f"{before.num_steps:,}", error)
            self._use(before)
            return False
        return True

    def _evaluate(self, metrics: dict[str, Any]) -> float | None:
        """Measure on validation text and on tasks, where there are such; gives the loss."""
        evaluator, tasks, model = self._run.evaluator, self._run.tasks, self._state.model
        in_precision = functools.partial(autocast, self._config)
        with self._meter.pause("evaluation"), self._state.averaged():
            evaluation = None if evaluator is None else evaluator(model, in_precision)
            scores = [] if tasks is None else tasks(model, in_precision)
        metrics |= {f"{TASK_PREFIX}{score.name}": score.raw.value for score in scores}
        if evaluation is None:
            return None
        self._state.note_validation(evaluation.loss, evaluation.bits_per_byte)
        metrics["validation_loss"] = evaluation.loss
        metrics["perplexity"] = evaluation.perplexity
        metrics["bits_per_byte"] = evaluation.bits_per_byte
        return evaluation.loss

    def _sample(self, metrics: dict[str, Any]) -> None:
        assert self._write_sample is not None
        random_state = capture_random_state()
        with self._meter.pause("sample"), self._state.averaged(), torch.no_grad():
            model = self._state.whole_model()
            if self._world.is_first:
                metrics["samples"] = [
                    self._write_sample(model, self._run.tokenizer, prompt)
                    for prompt in self._config.samples.prompts
                ]
        restore_random_state(random_state)

    def _save(self, metric: float | None = None) -> None:
        """Write a checkpoint, if this is a rank that does."""
        if not self._world.is_first and self._state.local is None:
            return
        with self._meter.pause("checkpoint"), self._state.averaged():
            self._state.wall_seconds = self._meter.wall_seconds
            with lost_ranks_named(self._world):
                self._saver.save(self._state, metric)

    def _save_at_last(self) -> None:
        """Save, and end with an error if that cannot be."""
        with self._world.together(), lost_ranks_named(self._world):
            self._save()
            self._saver.check()

    def _give_up(self, reason: str) -> None:
        """Too many steps in a row were skipped: save the state before them and say what to do."""
        self._save_at_last()
        self._ending = "diverged"
        raise GroundupError(describe_divergence(self._config, self._state, reason, self._starts()))

    def _end(self) -> TrainSummary:
        self._save_at_last()
        state = self._state
        self._ending = "finished" if state.step >= self._config.num_steps else "stopped"
        summary = TrainSummary(
            run_folder=self._run.folder.path,
            steps=state.step,
            num_steps=self._config.num_steps,
            tokens=state.tokens,
            num_skipped=state.num_skipped,
            loss=state.loss,
            validation_loss=state.validation_loss,
            bits_per_byte=state.bits_per_byte,
            best_validation_loss=state.best_validation_loss,
            wall_seconds=self._meter.wall_seconds,
            stopped_by=self.outcome().reason,
        )
        _log.info(summary.describe())
        return summary

    def _starts(self) -> list[int]:
        """Where the windows of the latest step begin in the split, of all ranks."""
        loader, step = self._run.loader, self._state.step - 1
        starts: list[int] = loader.order.starts(
            step * loader.batch_size, loader.batch_size
        ).tolist()
        return starts


def _check_budget(own: OwnParts, world: World) -> None:
    if not own.is_empty:
        raise ConfigError("a time decides the length of a run by settings alone: give num_steps")
    if world.size > 1:
        raise ConfigError(
            f"--minutes times the steps of one process and not of {world.size}: give --num-steps"
        )


def _works_through_a_queue(config: RunConfig) -> bool:
    """Does the device compute while the host is busy with something else?"""
    return config.device.startswith("cuda")
