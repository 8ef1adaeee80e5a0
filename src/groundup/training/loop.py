"""The training loop: open, step, log, evaluate, sample, save, stop.

What each of these does lives in a file of its own; here is when, and in which order. A step that
is followed by nothing but a log line is finished while the device computes the next one.
"""

import contextlib
import datetime
import functools
import gc
import logging
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import torch

from groundup.checkpoint import CheckpointFolder, capture_random_state, restore_random_state
from groundup.distributed.process_group import (
    LostRankError,
    find_world,
    lost_ranks_named,
    open_world,
)
from groundup.errors import GroundupError
from groundup.nn.adapters import adapted_state
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runs.outcome import Outcome, State
from groundup.runtime import count_of, format_duration, peak_memory_bytes
from groundup.training.callbacks import Callback
from groundup.training.clock import Clock, Tick
from groundup.training.data import open_data
from groundup.training.environment import check_changes
from groundup.training.evaluation import Evaluation
from groundup.training.execution import autocast, switches
from groundup.training.machine import Machine
from groundup.training.metrics import TASK_PREFIX, Meter, MetricsWriter
from groundup.training.overrides import Loss, Overrides, check_overrides
from groundup.training.resolve import ResolvedRun, resolve
from groundup.training.setup import OpenRun, open_run
from groundup.training.signals import StopRequest
from groundup.training.state import Saver
from groundup.training.step import QueuedStep, Step

_NO_MEMORY = re.compile(r"out of memory|not enough memory|can't allocate memory", re.IGNORECASE)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainSummary:
    """How a run stands when `train` returns."""

    run_folder: Path
    steps: int
    num_steps: int | None
    is_finished: bool
    tokens: int
    num_skipped: int
    loss: float | None
    validation_loss: float | None
    bits_per_byte: float | None
    best_validation_loss: float | None
    wall_seconds: float
    stopped_by: str | None = None
    """The signal that ended it early, if one did."""

    def describe(self) -> str:
        """One line that says how the run ended and how to continue it."""
        took = format_duration(self.wall_seconds)
        if self.is_finished:
            return (
                f"done: {count_of(self.steps, 'step')} in {took}; the run is in {self.run_folder}"
            )
        whole = "" if self.num_steps is None else f" of {self.num_steps:,}"
        return (
            f"stopped after step {self.steps:,}{whole} and saved in {self.run_folder}; continue "
            f"with the same command and --resume"
        )


def train(
    config: RunConfig,
    *,
    resume: bool = False,
    allow_changes: bool = False,
    callbacks: Sequence[Callback] = (),
    clock: Clock | None = None,
    **overrides: Unpack[Overrides],
) -> TrainSummary:
    """Train a run from its first step, or with `resume` from its newest checkpoint, to its last.

    Processes that torchrun started train it together, by the settings of the first. A run without a
    name gets one from the time. Out of memory, one process goes on with smaller micro-batches.

    allow_changes: accept settings that differ from those the run began with, an error otherwise.
    clock: what `minutes` counts from, or where to stop; by default from this call to the end.
    overrides: a model, data or a loss in place of what the settings say, see `Overrides`.
    """
    clock = clock or Clock()
    if config.name is None:
        now = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        config = config.model_copy(update={"name": now})
    with contextlib.ExitStack() as stack:
        machine = Machine.detect(config.device)
        minutes = config.distributed.timeout_minutes
        world = stack.enter_context(open_world(find_world(), machine.device, minutes))
        with world.together():
            config, resume = world.from_first((config, resume))
            check_overrides(config, overrides)
            if "model" in overrides:
                config = config.model_copy(update={"model": overrides["model"].config})
            folder = RunFolder(config.run_folder)
            previous = folder.read_config() if resume and folder.has_run() else None
            run = world.from_first(resolve(config, machine, world, previous=previous))
            if previous is not None:
                settings = previous.model_dump(mode="json")
                check_changes(settings, run.config, allow_changes=allow_changes)
        with world.together():
            if world.is_first:
                stack.enter_context(folder.claim(resume=resume))
        with world.together():
            record = stack.enter_context(folder.recording(world.rank))
            record.takes_errors = not resume
        stack.enter_context(switches(run.config))
        for callback in callbacks:
            stack.callback(callback.close)
        with world.together():
            data = open_data(run.config, folder, overrides, resume=resume)
            if run.config.epochs is not None and run.config.num_steps is None:
                rows = data.epoch_rows(run.config.model.context_length)
                run = resolve(config, machine, world, previous=previous, epoch_rows=rows)
                run = world.from_first(run)
        while True:
            try:
                with world.together():
                    opened = open_run(
                        run,
                        data,
                        folder,
                        resume=resume,
                        allow_changes=allow_changes,
                        model=overrides.get("model"),
                        world=world,
                    )
                record.takes_errors = True
                with contextlib.ExitStack() as trackers:
                    for tracker in opened.trackers:
                        trackers.callback(tracker.close)
                    loop = _Loop(opened, clock, callbacks, overrides.get("loss"))
                    record.outcome = loop.outcome
                    return loop.run()
            except (RuntimeError, MemoryError) as error:
                if not _is_out_of_memory(error):
                    raise
                run = _with_half_the_memory(run, world.size, error)
            # The same settings but for the micro-batches, from what is saved.
            resume, allow_changes = folder.has_run(), True
            opened, loop = None, None  # type: ignore[assignment]
            _free_memory(machine.device)


class _Loop:
    """The loop over one run."""

    def __init__(
        self, run: OpenRun, clock: Clock, callbacks: Sequence[Callback], loss: Loss | None
    ) -> None:
        config, state = run.config, run.state
        self._run = run
        self._config = config
        self._world = state.reduction.world
        self._state = state
        self._clock = clock
        self._callbacks = callbacks
        self._samplers = [one for one in callbacks if type(one).sample is not Callback.sample]
        self._meter = Meter(config, run.peak_flops_per_second, state, self._world.size)
        listeners = [*run.trackers, *callbacks]
        self._metrics = MetricsWriter(config, run.folder.metrics_file, self._meter, listeners)
        settings = config.model_dump(mode="json")
        self._saver = Saver(run.checkpoints, self._metrics.sync, settings, run.resumed_step)
        self._stop = StopRequest()
        self._ending: State = "failed"
        # What gathers weights cannot be recorded.
        can_record = state.local is None
        self._step = Step(
            config, state.model, state.optimizer, state.reduction, loss, can_record=can_record
        )

    def run(self) -> TrainSummary:
        """Take all steps until the clock gives no more; save and sum up."""
        loader, state, clock = self._run.loader, self._state, self._clock
        began = time.monotonic()
        with self._stop, self._saved_if_ranks_are_lost():
            clock.open(self._config, self._world, self._stop, state.clock, state.step)
            if clock.is_measuring:
                clock.reserve_seconds = self._measure_end()
            num_steps = self._config.num_steps
            num_left = None if num_steps is None else max(0, num_steps - state.step)
            with loader.batches(state.step, num_left) as batches:
                queued: QueuedStep | None = None
                for batch in batches:
                    tick = clock.tick(batch.step + 1)
                    if tick is None:
                        break
                    launched = self._step(batch, tick)
                    if queued is not None:
                        self._finish(queued)
                    queued = launched
                    if not self._may_wait(tick):
                        self._finish(launched)
                        queued = None
                    if tick.is_last:
                        break
                if queued is not None:
                    self._finish(queued)
            percent = 100 * loader.wait_seconds / max(time.monotonic() - began, 1e-9)
            waited = f"{loader.wait_seconds:.2f} s, {percent:.1f}% of the time"
            _log.info("waited for batches: %s", waited)
            return self._end()

    def outcome(self) -> Outcome:
        """How the run ended, to be asked when it has."""
        stop_signal = self._stop.signal if self._ending == "stopped" else None
        return Outcome(
            self._ending,
            self._state.step,
            None if stop_signal is None else stop_signal.name,
            {"wall_seconds": round(self._meter.wall_seconds, 3), "tokens": self._state.tokens},
        )

    def _may_wait(self, tick: Tick) -> bool:
        """Whether the result of a step may be read after the next one is queued.

        Not where something looks at the weights in between, nor while steps are being skipped (the
        run must stop before a step too many), nor with dropout, whose random state is saved.
        """
        config = self._config
        return (
            _has_queue(config)
            and not config.model.dropout
            and config.max_skipped_steps > 1
            and self._state.num_skipped_in_row == 0
            and not self._is_evaluation_due(tick)
            and not self._is_sample_due(tick)
            and not tick.is_due(config.checkpoints)
        )

    def _is_evaluation_due(self, tick: Tick) -> bool:
        """A checkpoint that may be the best one has to be measured, whatever the intervals."""
        if self._run.evaluator is None and self._run.tasks is None:
            return False
        evaluation, checkpoints = self._config.evaluation, self._config.checkpoints
        is_measured = checkpoints.keep_best and not evaluation.is_never
        return tick.is_due(evaluation) or (is_measured and tick.is_due(checkpoints))

    def _is_sample_due(self, tick: Tick) -> bool:
        samples = self._config.samples
        return bool(self._samplers) and not samples.is_never and tick.is_due(samples)

    def _finish(self, queued: QueuedStep) -> None:
        """Everything that follows a step, in a fixed order: metrics, evaluation, sample, save."""
        config, state, tick = self._config, self._state, queued.tick
        result = queued.read()
        state.count_step(result.loss, result.is_skipped)
        if config.model.dropout and not result.is_skipped:
            state.random_state = capture_random_state(state.model.device)
        metrics: dict[str, Any] = {}
        if result.is_skipped:
            metrics |= {"skipped": True, "reason": result.reason, "batch_starts": self._starts()}
        if result.is_skipped or tick.step == 1 or tick.is_due(config.logging):
            metrics["loss"] = result.loss
            metrics["learning_rate"] = queued.learning_rate
            metrics["gradient_norm"] = result.gradient_norm
            metrics |= self._meter.read(state.tokens)
        validation_loss = None
        try:
            if self._is_evaluation_due(tick):
                validation_loss = self._evaluate(metrics)
            if self._is_sample_due(tick):
                metrics["samples"] = self._sample()
        finally:
            # Also if a rank is lost on the way: the step is saved, and a resume begins behind it.
            if metrics:
                metrics |= self._clock.take_progress(state.step)
            if metrics and self._world.is_first:
                self._metrics.write(state, metrics, tick.progress)
        if state.num_skipped_in_row >= config.max_skipped_steps:
            self._give_up(result.reason)
        if tick.is_due(config.checkpoints):
            self._save(validation_loss)
        for callback in self._callbacks:
            callback.after_step(state.step, tick.progress)

    def _evaluate(self, metrics: dict[str, Any]) -> float | None:
        """Measure on validation text and on tasks, where there are such; gives the loss."""
        evaluation, tasks = self._measure()
        metrics |= tasks
        if evaluation is None:
            return None
        self._state.note_validation(evaluation.loss, evaluation.bits_per_byte)
        metrics["validation_loss"] = evaluation.loss
        metrics["perplexity"] = evaluation.perplexity
        metrics["bits_per_byte"] = evaluation.bits_per_byte
        return evaluation.loss

    def _measure(self) -> tuple[Evaluation | None, dict[str, float]]:
        evaluator, tasks, model = self._run.evaluator, self._run.tasks, self._state.model
        in_precision = functools.partial(autocast, self._config)
        with self._meter.pause(), self._state.averaged():
            evaluation = None if evaluator is None else evaluator(model, in_precision)
            scores = [] if tasks is None else tasks(model, in_precision)
        return evaluation, {f"{TASK_PREFIX}{score.name}": score.raw.value for score in scores}

    def _sample(self) -> list[str]:
        random_state = capture_random_state()
        texts = []
        with self._meter.pause(), self._state.averaged(), torch.no_grad():
            model = self._state.whole_model()
            for prompt in self._config.samples.prompts if self._world.is_first else ():
                found = (one.sample(model, self._run.tokenizer, prompt) for one in self._samplers)
                texts.append(next((text for text in found if text is not None), ""))
        restore_random_state(random_state)
        return texts

    def _measure_end(self) -> float:
        """How long a timed run takes for what follows its last step; that is tried before it."""
        if self._config.compile != "off":
            self._measure()
        seconds = self._clock.time(self._measure)
        if self._samplers and not self._config.samples.is_never:
            seconds += self._clock.time(self._sample)
        state, scratch = self._state, self._run.folder.path / ".timing"
        if state.local is None and self._world.is_first:
            save = functools.partial(
                CheckpointFolder(scratch).save,
                0,
                adapted_state(state.model),
                state.optimizer_state(),
                state.counters(),
            )
            try:
                # The optimizer has no state yet; later it has twice as much as the weights.
                seconds += 3 * self._clock.time(save)
            except OSError as error:
                _log.warning("how long a checkpoint takes is not known: %s", error)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        return seconds

    def _save(self, metric: float | None = None) -> None:
        """Write a checkpoint, if this is a rank that does."""
        state = self._state
        if not self._world.is_first and state.local is None:
            return
        with self._meter.pause(), state.averaged():
            state.wall_seconds = self._meter.wall_seconds
            state.clock = self._clock.state(state.last_good_step)
            with lost_ranks_named():
                self._saver.save(state, metric)

    def _save_at_last(self) -> None:
        """Save, and end with an error if that cannot be."""
        with self._world.together(), lost_ranks_named():
            self._save()
            self._saver.check()

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
            if self._state.is_whole and not _has_queue(self._config):
                self._save()
            raise

    def _give_up(self, reason: str) -> None:
        """Too many steps in a row were skipped: save the state before them and say what to do."""
        self._save_at_last()
        self._ending = "diverged"
        state = self._state
        raise GroundupError(
            f"{state.num_skipped_in_row} steps in a row had no finite loss and gradients (the "
            f"last: {reason}; its windows begin at ids {self._starts()[:4]}), so the run stopped; "
            f"it is saved as it was after step {state.last_good_step}, its last good one. Lower "
            f"--optimizer.learning-rate from {self._config.optimizer.learning_rate:g} or use "
            f"--precision float32, and continue with --resume --allow-changes. metrics.jsonl names "
            f"the windows of every skipped step: if they are always the same, look at the text"
        )

    def _end(self) -> TrainSummary:
        self._save_at_last()
        state = self._state
        is_finished = self._clock.is_done(state.step)
        self._ending = "finished" if is_finished else "stopped"
        names = ("tokens", "num_skipped", "loss", "validation_loss", "bits_per_byte")
        summary = TrainSummary(
            run_folder=self._run.folder.path,
            steps=state.step,
            num_steps=self._config.num_steps,
            is_finished=is_finished,
            best_validation_loss=state.best_validation_loss,
            wall_seconds=self._meter.wall_seconds,
            stopped_by=self.outcome().reason,
            **{name: getattr(state, name) for name in names},
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


def _has_queue(config: RunConfig) -> bool:
    """Whether the device computes while the host is busy with something else."""
    return config.device.startswith("cuda")


def _is_out_of_memory(error: Exception) -> bool:
    is_known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return is_known or _NO_MEMORY.search(str(error)) is not None


def _with_half_the_memory(run: ResolvedRun, num_ranks: int, error: Exception) -> ResolvedRun:
    """The run with smaller micro-batches; an error with numbers where there are none."""
    config = run.config
    size, length = config.sequences_in_memory, config.model.context_length
    sizes = range(size // 2, 0, -1)
    half = next((count for count in sizes if config.batch_size % count == 0), None)
    if half is None or num_ranks > 1:
        advice = f"a smaller model or a --model.context-length below {length}"
        if half is not None:
            advice = f"--micro-batch-size {half}, which gives the same batch in less memory"
        raise GroundupError(
            f"out of memory on {config.device} with micro-batches of {size} sequences of {length} "
            f"tokens in {config.precision} ({_memory_in_use(config.device)}). Use {advice}, or "
            f"close other programs; a run that has checkpoints continues with --resume"
        ) from error
    _log.warning("out of memory: micro-batches of %d sequences instead of %d", half, size)
    return replace(run, config=config.model_copy(update={"micro_batch_size": half}))


def _memory_in_use(device: str) -> str:
    peak = peak_memory_bytes()
    if device.startswith("cuda"):
        peak = torch.cuda.max_memory_allocated(device)
    return f"{peak / 2**30:.1f} GiB at most in use"


def _free_memory(device: str) -> None:
    """Drop what only cycles hold, a recorded graph with its memory for one."""
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
