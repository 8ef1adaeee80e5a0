"""The training loop: open, step, log, evaluate, sample, save, stop.

Each of these has a file of its own; this one decides when they happen, and in which order. If only
a log line follows a step, its result is read while the device computes the next step.
"""

import contextlib
import gc
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import torch

from groundup.checkpoint import (
    Checkpoint,
    CheckpointFolder,
    capture_random_state,
    restore_random_state,
)
from groundup.distributed.process_group import (
    LostRankError,
    ProcessGroup,
    find_process_group,
    lost_rank_errors,
    open_process_group,
)
from groundup.errors import ConfigError, GroundupError, is_out_of_memory
from groundup.files import read_json_lines
from groundup.nn.adapters import adapted_state
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder, check_parts
from groundup.runs.outcome import Outcome, State
from groundup.runtime import count_of, set_up_logging
from groundup.training.clock import Clock, StopRequest, Tick
from groundup.training.data import RunData, open_data
from groundup.training.evaluation import Evaluation
from groundup.training.machine import Machine, autocast, describe_environment, switches
from groundup.training.metrics import Callback, Metrics
from groundup.training.preference import Preference
from groundup.training.resolve import ResolvedRun, name_run, resolve
from groundup.training.start import Overrides, Start, check_overrides, parts_of
from groundup.training.state import build_state
from groundup.training.step import QueuedStep, Step

# Assumed disk speed, to reserve time for a timed run's last checkpoint.
_SAVED_BYTES_PER_SECOND = 5e8

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainSummary:
    """The state of a run when `train` returns."""

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
    """The signal that ended it early, if any."""


def train(
    config: RunConfig,
    *,
    resume: bool = False,
    allow_changes: bool = False,
    callbacks: Sequence[Callback] = (),
    clock: Clock | None = None,
    **overrides: Unpack[Overrides],
) -> TrainSummary:
    """Train a run to its end, from its first step or, with `resume`, from its newest checkpoint.

    Processes started by torchrun train together, with rank 0's settings. A run without a name is
    named after the time. If a single process runs out of memory, it continues with smaller
    micro-batches.

    allow_changes: accept settings that differ from the run's when resuming.
    clock: what `minutes` counts from, and where to stop. Default: from this call to the end.
    overrides: a model, data, a loss, an optimizer or a schedule instead of the settings', see
        `Overrides`.
    """
    clock = clock or Clock()
    if not _log.hasHandlers():
        # Show progress in scripts and notebooks that have not set up logging.
        set_up_logging()
    check_overrides(config, overrides)
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigError(f"{callback!r:.60} is not a groundup.training.Callback")
    with contextlib.ExitStack() as stack:
        machine = Machine.detect(config.device)
        minutes = config.distributed.timeout_minutes
        ranks = find_process_group()
        ranks = stack.enter_context(open_process_group(ranks, machine.device, minutes))
        with ranks.barrier():
            parts = parts_of(overrides)
            if config.parts:
                check_parts(config.runs_folder / (config.name or ""), config.parts, parts)
            named = name_run(config, overrides.get("model"), parts)
            config, resume = ranks.broadcast((named, resume))
            folder, previous = RunFolder(config.run_folder), None
            if resume and folder.has_run():
                previous = folder.read_config(parts)
                check_parts(folder.path, previous.parts, parts)
            known: dict[str, Any] = {"make_optimizer": overrides.get("optimizer")}
            known["previous"] = previous
            run = ranks.broadcast(resolve(config, machine, ranks, **known))
        with ranks.barrier():
            if ranks.is_first:
                stack.enter_context(folder.claim(resume=resume))
        with ranks.barrier():
            record = stack.enter_context(folder.recording(ranks.rank))
            record.records_errors = not resume
        stack.enter_context(switches(run.config))
        for callback in callbacks:
            stack.callback(callback.close)
        with ranks.barrier():
            data = open_data(run.config, folder, overrides, ranks, resume=resume)
            if run.config.num_steps is None:
                rows = data.epoch_rows(run.config.model.context_length)
                run = resolve(config, machine, ranks, epoch_rows=rows, **known)
                run = ranks.broadcast(run)
        while True:
            try:
                with ranks.barrier():
                    given = run, data, folder, ranks, clock, callbacks, overrides
                    loop = _Loop(*given, resume=resume, allow_changes=allow_changes)
                record.records_errors, record.outcome = True, loop.outcome
                return loop.run()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                size, half = run.config.sequences_in_memory, run.halved()
                found = f"out of memory on {machine.device} with {size} sequences at once"
                if half is None or ranks.size > 1:
                    raise GroundupError(f"{found}: use a smaller --micro-batch-size") from error
                _log.warning("%s: half as many", found)
                run = half
            # Resume from the checkpoint; only the micro-batch size changes.
            resume, allow_changes = folder.has_run(), True
            loop = None  # type: ignore[assignment]
            # Free reference cycles, such as a recorded CUDA graph with its memory.
            gc.collect()
            if machine.device.startswith("cuda"):
                torch.cuda.empty_cache()


class _Loop:
    """The loop over one run."""

    def __init__(
        self,
        run: ResolvedRun,
        data: RunData,
        folder: RunFolder,
        ranks: ProcessGroup,
        clock: Clock,
        callbacks: Sequence[Callback],
        overrides: Overrides,
        *,
        resume: bool,
        allow_changes: bool,
    ) -> None:
        """Check everything that can be checked before the first step, and build the parts. Rank 0
        writes to the folder only after all ranks have passed the checks."""
        self._config = config = run.config
        self._data, self._folder, self._ranks, self._clock = data, folder, ranks, clock
        self._callbacks = callbacks
        environment = describe_environment(config, data.ids, data.end_id)
        facts = {f"version of {name}": environment[name] for name in ("groundup", "torch", "numpy")}
        ranks.check_same(facts | {f"data ({key})": one for key, one in environment["data"].items()})
        kept = config.checkpoints.keep_last, config.checkpoints.keep_best
        self._checkpoints = CheckpointFolder(folder.checkpoints, *kept)
        if run.strategy != "ddp":
            from groundup.checkpoint.sharded import ShardedFolder

            self._checkpoints = ShardedFolder(folder.checkpoints, *kept, group=ranks.host_group)
        checkpoint: Checkpoint | None = None
        if resume and ranks.broadcast(bool(self._checkpoints.steps())):
            # Only rank 0 hashes it.
            checkpoint = ranks.broadcast(self._checkpoints.newest() if ranks.is_first else None)
        start = None
        if config.start_from is not None and checkpoint is None:
            parts = config.start_from, config.model, data.tokenizer
            start = Start.open(*parts, ranks, with_optimizer=config.continue_training)
            environment |= start.describe(is_tuned=bool(config.tuning.chats))
        changes: list[str] = []
        if resume:
            # Prefer the checkpoint's settings: those in the run folder are not hashed.
            settings = None if checkpoint is None else checkpoint.state.get("settings")
            if not isinstance(settings, dict):
                settings = folder.read_config(config.parts).model_dump(mode="json")
            current = environment, config, settings
            environment, changes = folder.note_resume(*current, allow_changes=allow_changes)
        if checkpoint is not None and checkpoint.step > (config.num_steps or checkpoint.step):
            raise ConfigError(
                f"{checkpoint.path} is past num_steps {config.num_steps}: give more --num-steps"
            )
        given = data.tokenizer, start, overrides.get("model"), ranks, overrides.get("optimizer")
        self._state = state = build_state(run, *given)
        if checkpoint is not None:
            state.restore(checkpoint)
        if data.pairs:
            state.preference = Preference.open(config, state.model, data.pairs, checkpoint)
        self._loader = data.loader(config, ranks)
        # Errors of a single rank have been raised by now.
        ranks.gather(None)
        if ranks.is_first and resume:
            folder.rewind(config, environment, state.step)
        elif ranks.is_first:
            folder.begin(config, data.tokenizer, environment)
        if changes:
            _log.warning("resumed with changes: %s", "; ".join(changes))
        if checkpoint is not None:
            _log.info("resumed from %s", checkpoint.path)
        elif start is not None:
            keeps = config.continue_training and start.load_optimizer_into(state.optimizer, config)
            what = "weights and the optimizer" if keeps else "weights"
            _log.info("starting from the %s of %s", what, start.checkpoint.path)
        data.log(config)
        _log.info(run.describe(ranks.size))
        self._metrics = Metrics(config, folder, state, callbacks)
        self._step = Step(config, state, overrides.get("loss"), overrides.get("schedule"))
        self._evaluator = data.evaluator(config, ranks)
        samplers = [one for one in callbacks if type(one).sample is not Callback.sample]
        # With sharded weights no rank has a whole model to sample from.
        can_sample = ranks.is_first and state.local is None and config.samples.every_steps > 0
        self._sample_by = samplers[0].sample if samplers and can_sample else None
        self._stop = StopRequest()
        self._ending: State = "failed"
        self._saved_step = state.step or None
        self._num_finished = 0
        self._save_failure: str | None = None
        # The metric of the latest measured step, for a retried save.
        self._measured: dict[int, float] = {}
        # Validation losses, including those before a resume.
        has_records = resume and folder.metrics_file.exists()
        records = read_json_lines(folder.metrics_file) if has_records else ()
        losses = (record.get("validation_loss") for record in records)
        self._losses: list[float] = [loss for loss in losses if loss is not None]

    def run(self) -> TrainSummary:
        """Take steps until the clock stops; save and summarize."""
        try:
            return self._run()
        except LostRankError:
            # DDP copies are complete, unless the rank was lost during a weight update.
            if self._state.local is None and self._num_finished == self._step.num_updates:
                self._save()
            raise

    def _run(self) -> TrainSummary:
        config, state, clock = self._config, self._state, self._clock
        with self._stop:
            begin = state.clock, state.step, self._warm_up_end
            is_measured = config.continue_training and state.step == 0
            # The loss that continued training has to beat.
            found = self._evaluate() if is_measured and self._evaluator is not None else None
            # Raises ConfigError if no time is left: nothing may be written before it.
            clock.open(config, self._ranks, self._stop, *begin)
            if found is not None:
                self._metrics.write(state, {"validation_loss": found.loss, **found.metrics})
                self._losses.append(found.loss)
                self._save(found.loss)
            num_left = None if config.num_steps is None else max(0, config.num_steps - state.step)
            with self._loader.batches(state.step, num_left) as batches:
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
                        if self._has_stalled():
                            clock.end()
                    if tick.is_last or clock.is_done(tick.step):
                        break
                if queued is not None:
                    self._finish(queued)
            return self._end()

    def outcome(self) -> Outcome:
        """How the run ended."""
        number = self._stop.signal
        reason = number.name if number and self._ending == "stopped" else None
        seconds, tokens = round(self._metrics.wall_seconds, 3), self._state.tokens
        cost = {"wall_seconds": seconds, "tokens": tokens}
        return Outcome(self._ending, self._state.step, reason, cost)

    def _may_wait(self, tick: Tick) -> bool:
        """Whether the result of a step may be read after the next one is queued: not if something
        needs the weights in between, not while steps are being skipped (the run must stop in time),
        and not with dropout, whose random state is saved."""
        config, state = self._config, self._state
        is_looked_at = self._is_evaluation_due(tick) or self._is_sample_due(tick)
        is_skipping = state.num_skipped_in_row > 0 or config.max_skipped_steps == 1
        may_wait = _has_queue(config) and not config.model.dropout and not is_skipping
        return may_wait and not is_looked_at and not tick.is_due(config.checkpoints)

    def _is_evaluation_due(self, tick: Tick) -> bool:
        """Also evaluates at every checkpoint that may become the best one."""
        evaluation, checkpoints = self._config.evaluation, self._config.checkpoints
        is_measured = checkpoints.keep_best and evaluation.every_steps > 0
        is_due = tick.is_due(evaluation) or (is_measured and tick.is_due(checkpoints))
        return self._evaluator is not None and is_due

    def _has_stalled(self) -> bool:
        """Whether the last `patience` evaluations did not improve on the best before them."""
        patience, losses = self._config.evaluation.patience, self._losses
        if patience is None or len(losses) <= patience:
            return False
        return min(losses[-patience:]) >= min(losses[:-patience])

    def _is_sample_due(self, tick: Tick) -> bool:
        return self._sample_by is not None and tick.is_due(self._config.samples)

    def _finish(self, queued: QueuedStep) -> None:
        """What follows a step, in order: metrics, evaluation, sample, save."""
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
            found = self._evaluate()
            state.validation_loss, state.bits_per_byte = found.loss, found.bits_per_byte
            self._losses.append(found.loss)
            metrics |= {"validation_loss": found.loss, **found.metrics}
        if self._is_sample_due(tick):
            metrics["samples"] = self._sample()
        if metrics:
            metrics |= self._clock.take_progress(state.step)
        if metrics and self._ranks.is_first:
            self._metrics.write(state, metrics)
        if state.num_skipped_in_row >= config.max_skipped_steps:
            self._give_up(metrics["reason"])
        self._num_finished += 1
        if tick.is_due(config.checkpoints):
            self._save(metrics.get("validation_loss"))
        for callback in self._callbacks:
            callback.after_step(state.step, tick.progress)

    def _evaluate(self) -> Evaluation:
        assert self._evaluator is not None
        with self._metrics.pause(), self._state.averaged():
            model, preference = self._state.model, self._state.preference
            return self._evaluator(model, lambda: autocast(self._config), preference)

    def _sample(self) -> list[str]:
        assert self._sample_by is not None
        random_state, parts = capture_random_state(), (self._state.model, self._data.tokenizer)
        with self._metrics.pause(), self._state.averaged(), torch.no_grad():
            prompts = self._config.samples.prompts
            texts = [self._sample_by(*parts, prompt) or "" for prompt in prompts]
        restore_random_state(random_state)
        return texts

    def _warm_up_end(self) -> float:
        """Run the evaluation and samples that follow a timed run's last step; returns the estimated
        seconds of the final checkpoint."""
        if self._evaluator is not None:
            self._evaluate()
        if self._sample_by is not None:
            self._sample()
        num_bytes = sum(weight.nbytes for weight in self._state.model.parameters())
        # The optimizer state is twice as large.
        return 3 * num_bytes / _SAVED_BYTES_PER_SECOND

    def _save(self, metric: float | None = None) -> None:
        """Write a checkpoint of the last good step. If that fails, the previous one is kept and the
        run continues; only a failure of the final attempt is an error."""
        state, local, step = self._state, self._state.local, self._state.last_good_step
        if not self._ranks.is_first and local is None:
            return
        if metric is not None:
            self._measured = {step: metric}
        if step == self._saved_step:
            return
        with self._metrics.pause(), state.averaged(), lost_rank_errors():
            state.wall_seconds, state.clock = self._metrics.wall_seconds, self._clock.state(step)
            optimizer = state.optimizer
            saved = optimizer.state_dict() if local is None else local.state_of(optimizer)
            counters = {**state.counters(), "settings": self._config.model_dump(mode="json")}
            parts = adapted_state(state.model), saved, counters, self._measured.get(step)

            def save() -> None:
                # A resume needs the records up to its checkpoint: write them first.
                self._checkpoints.prepare(self._metrics.sync)
                self._checkpoints.save(step, *parts)
                self._saved_step, self._save_failure = step, None

            try:
                save()
            except OSError as error:
                if (folder := self._folder.find()) is not self._folder:
                    self._checkpoints.path, self._metrics.folder = folder.checkpoints, folder
                    save()
                    raise GroundupError(
                        f"{self._folder.path} was renamed to {folder.path} during the run: saved "
                        f"there after step {step}; continue with --name {folder.path.name} --resume"
                    ) from None
                found = f"no checkpoint of step {step} can be written, older ones stay: {error}"
                self._save_failure = found
                _log.error(found)

    def _save_at_last(self) -> None:
        """Save; raise GroundupError if that fails."""
        with self._ranks.barrier():
            self._save()
            if (failure := self._save_failure) is not None:
                raise GroundupError(f"{failure}. Free space or fix this, and use --resume")

    def _give_up(self, reason: str) -> None:
        """Save the state before too many skipped steps, and raise GroundupError."""
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
        state, path = self._state, self._folder.path
        is_finished = self._clock.is_done(state.step)
        self._ending = "finished" if is_finished else "stopped"
        ends_with_best = self._config.continue_training or bool(self._config.tuning.chats)
        if is_finished and ends_with_best and self._ranks.is_first:
            best = self._checkpoints.end_with_best()
            if best is not None and best < state.last_good_step:
                _log.info("the weights after step %s validate best: later ones are dropped", best)
                self._log_best()
        how = "done" if is_finished else "stopped; continue with the same command and --resume"
        _log.info("saved in %s after %s: %s", path, count_of(state.step, "step"), how)
        counts = state.tokens, state.num_skipped
        losses = state.loss, state.validation_loss, state.bits_per_byte
        last = self._metrics.wall_seconds, self.outcome().reason
        return TrainSummary(path, state.step, is_finished, *counts, *losses, *last)

    def _log_best(self) -> None:
        """Report the losses of the kept weights; bits per byte are proportional to the loss."""
        state, least = self._state, min(self._losses)
        if state.validation_loss and state.bits_per_byte is not None:
            state.bits_per_byte *= least / state.validation_loss
        state.validation_loss = least


def _has_queue(config: RunConfig) -> bool:
    """Whether the device computes asynchronously."""
    return config.device.startswith("cuda")
