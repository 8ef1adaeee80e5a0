"""The training loop: open, step, log, evaluate, sample, save, stop.

What each of these does lives in a file of its own; here is when, and in which order. A step that
is followed by nothing but a log line is finished while the device computes the next one.
"""

import contextlib
import gc
import logging
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import torch

from groundup.checkpoint import CheckpointFolder, capture_random_state, restore_random_state
from groundup.distributed.process_group import find_world, lost_ranks_named, open_world
from groundup.errors import GroundupError
from groundup.nn.adapters import adapted_state
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runs.outcome import Outcome, State
from groundup.runtime import count_of
from groundup.training.callbacks import Callback
from groundup.training.clock import Clock, Tick
from groundup.training.data import open_data
from groundup.training.evaluation import Evaluation
from groundup.training.execution import autocast, switches
from groundup.training.machine import Machine
from groundup.training.metrics import Metrics
from groundup.training.overrides import Loss, Overrides, check_overrides
from groundup.training.resolve import name_run, resolve
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
    is_finished: bool
    tokens: int
    num_skipped: int
    loss: float | None
    validation_loss: float | None
    bits_per_byte: float | None
    wall_seconds: float
    stopped_by: str | None = None
    """The signal that ended it early, if one did."""


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
    with contextlib.ExitStack() as stack:
        machine = Machine.detect(config.device)
        minutes = config.distributed.timeout_minutes
        world = stack.enter_context(open_world(find_world(), machine.device, minutes))
        with world.together():
            check_overrides(config, overrides)
            config, resume = world.from_first((name_run(config, overrides.get("model")), resume))
            folder = RunFolder(config.run_folder)
            previous = folder.read_config() if resume and folder.has_run() else None
            run = world.from_first(resolve(config, machine, world, previous=previous))
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
                    options = {"resume": resume, "allow_changes": allow_changes}
                    opened = open_run(run, data, folder, overrides, world, **options)
                record.takes_errors = True
                with contextlib.ExitStack() as trackers:
                    for tracker in opened.trackers:
                        trackers.callback(tracker.close)
                    loop = _Loop(opened, clock, callbacks, overrides.get("loss"))
                    record.outcome = loop.outcome
                    return loop.run()
            except (RuntimeError, MemoryError) as error:
                if not isinstance(error, MemoryError) and not _NO_MEMORY.search(str(error)):
                    raise
                size, half = run.config.sequences_in_memory, run.halved()
                found = f"out of memory on {machine.device} with {size} sequences at once"
                if half is None or world.size > 1:
                    raise GroundupError(f"{found}: use a smaller --micro-batch-size") from error
                _log.warning("%s: half as many", found)
                run = half
            # The same settings but for the micro-batches, from what is saved.
            resume, allow_changes = folder.has_run(), True
            opened, loop = None, None  # type: ignore[assignment]
            # What only cycles hold: a recorded graph with its memory, for one.
            gc.collect()
            if machine.device.startswith("cuda"):
                torch.cuda.empty_cache()


class _Loop:
    """The loop over one run."""

    def __init__(
        self,
        run: OpenRun,
        clock: Clock,
        callbacks: Sequence[Callback],
        loss: Loss | None,
    ) -> None:
        self._run, self._clock, self._callbacks = run, clock, callbacks
        self._config = config = run.run.config
        self._state = state = run.state
        self._world = state.reduction.world
        self._evaluator = run.data.evaluator(config, self._world)
        self._samplers: list[Callback] = []
        # Where ranks share the weights none has a model to sample from.
        if state.local is None and self._world.is_first:
            self._samplers = [one for one in callbacks if type(one).sample is not Callback.sample]
        listeners = [*run.trackers, *callbacks]
        self._metrics = Metrics(config, run.folder.metrics_file, state, listeners)
        settings = config.model_dump(mode="json")
        self._saver = Saver(run.checkpoints, self._metrics.sync, settings, state.step or None)
        self._stop = StopRequest()
        self._ending: State = "failed"
        self._step = Step(config, state, loss)

    def run(self) -> TrainSummary:
        """Take all steps until the clock gives no more; save and sum up."""
        config, state, clock = self._config, self._state, self._clock
        with self._stop:
            begin = state.clock, state.step, self._rehearse_end
            clock.open(config, self._world, self._stop, *begin)
            num_left = None if config.num_steps is None else max(0, config.num_steps - state.step)
            loader = self._run.data.loader(config, self._world)
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
            return self._end()

    def outcome(self) -> Outcome:
        """How the run ended, to be asked when it has."""
        stop_signal = self._stop.signal if self._ending == "stopped" else None
        reason = None if stop_signal is None else stop_signal.name
        seconds, tokens = round(self._metrics.wall_seconds, 3), self._state.tokens
        cost = {"wall_seconds": seconds, "tokens": tokens}
        return Outcome(self._ending, self._state.step, reason, cost)

    def _may_wait(self, tick: Tick) -> bool:
        """Whether the result of a step may be read after the next one is queued.

        Not where something looks at the weights in between, nor while steps are being skipped (the
        run must stop before a step too many), nor with dropout, whose random state is saved.
        """
        config, state = self._config, self._state
        is_looked_at = self._is_evaluation_due(tick) or self._is_sample_due(tick)
        is_skipping = state.num_skipped_in_row > 0 or config.max_skipped_steps == 1
        may_wait = _has_queue(config) and not config.model.dropout and not is_skipping
        return may_wait and not is_looked_at and not tick.is_due(config.checkpoints)

    def _is_evaluation_due(self, tick: Tick) -> bool:
        """A checkpoint that may be the best one has to be measured, whatever the intervals."""
        evaluation, checkpoints = self._config.evaluation, self._config.checkpoints
        is_measured = checkpoints.keep_best and not evaluation.is_never
        is_due = tick.is_due(evaluation) or (is_measured and tick.is_due(checkpoints))
        return self._evaluator is not None and is_due

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
            reason = f"loss {result.loss}, gradient norm {result.gradient_norm}"
            metrics |= {"skipped": True, "reason": reason}
        if result.is_skipped or tick.step == 1 or tick.is_due(config.logging):
            metrics |= {"loss": result.loss, "learning_rate": queued.learning_rate}
            metrics |= {"gradient_norm": result.gradient_norm}
            metrics |= self._metrics.read(state.tokens)
        if self._is_evaluation_due(tick):
            evaluation = self._evaluate()
            state.validation_loss = evaluation.loss
            state.bits_per_byte = evaluation.bits_per_byte
            metrics |= {"validation_loss": evaluation.loss, "perplexity": evaluation.perplexity}
            metrics |= {"bits_per_byte": evaluation.bits_per_byte}
        if self._is_sample_due(tick):
            metrics["samples"] = self._sample()
        if metrics:
            metrics |= self._clock.take_progress(state.step)
        if metrics and self._world.is_first:
            self._metrics.write(state, metrics)
        if state.num_skipped_in_row >= config.max_skipped_steps:
            self._give_up(metrics["reason"])
        if tick.is_due(config.checkpoints):
            self._save(metrics.get("validation_loss"))
        for callback in self._callbacks:
            callback.after_step(state.step, tick.progress)

    def _evaluate(self) -> Evaluation:
        assert self._evaluator is not None
        with self._metrics.pause(), self._state.averaged():
            return self._evaluator(self._state.model, lambda: autocast(self._config))

    def _sample(self) -> list[str]:
        random_state = capture_random_state()
        texts = []
        with self._metrics.pause(), self._state.averaged(), torch.no_grad():
            model, tokenizer = self._state.model, self._run.data.tokenizer
            for prompt in self._config.samples.prompts:
                found = (one.sample(model, tokenizer, prompt) for one in self._samplers)
                texts.append(next((text for text in found if text is not None), ""))
        restore_random_state(random_state)
        return texts

    def _rehearse_end(self) -> None:
        """What follows the last step of a timed run: an evaluation, samples, a checkpoint."""
        state, scratch = self._state, self._run.folder.path / ".timing"
        if self._evaluator is not None:
            self._evaluate()
        if self._samplers and not self._config.samples.is_never:
            self._sample()
        if state.local is None and self._world.is_first:
            # A disk that is full now may have room at the end.
            with contextlib.suppress(OSError):
                # The optimizer has no state yet; later it has twice as much as the weights.
                for _ in range(3):
                    CheckpointFolder(scratch).save(0, adapted_state(state.model), {}, {})
            shutil.rmtree(scratch, ignore_errors=True)

    def _save(self, metric: float | None = None) -> None:
        """Write a checkpoint, if this is a rank that does."""
        state = self._state
        if not self._world.is_first and state.local is None:
            return
        with self._metrics.pause(), state.averaged():
            state.wall_seconds = self._metrics.wall_seconds
            state.clock = self._clock.state(state.last_good_step)
            with lost_ranks_named():
                self._saver.save(state, metric)

    def _save_at_last(self) -> None:
        """Save, and end with an error if that cannot be."""
        with self._world.together(), lost_ranks_named():
            self._save()
            self._saver.check()

    def _give_up(self, reason: str) -> None:
        """Too many steps in a row were skipped: save the state before them and say what to do."""
        self._save_at_last()
        self._ending = "diverged"
        state, rate = self._state, self._config.optimizer.learning_rate
        raise GroundupError(
            f"{state.num_skipped_in_row} steps in a row had no finite loss and gradients (the "
            f"last: {reason}); saved as it was after step {state.last_good_step}, its last good "
            f"one: lower --optimizer.learning-rate from {rate:g}, and --resume --allow-changes"
        )

    def _end(self) -> TrainSummary:
        self._save_at_last()
        state, path = self._state, self._run.folder.path
        is_finished = self._clock.is_done(state.step)
        self._ending = "finished" if is_finished else "stopped"
        how = "done" if is_finished else "stopped; continue with the same command and --resume"
        _log.info("saved in %s after %s: %s", path, count_of(state.step, "step"), how)
        counts = state.tokens, state.num_skipped
        losses = state.loss, state.validation_loss, state.bits_per_byte
        ending = self._metrics.wall_seconds, self.outcome().reason
        return TrainSummary(path, state.step, is_finished, *counts, *losses, *ending)


def _has_queue(config: RunConfig) -> bool:
    """Whether the device computes while the host is busy with something else."""
    return config.device.startswith("cuda")
