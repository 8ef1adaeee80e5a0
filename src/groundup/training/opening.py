"""Beginning a run, or finding it again where it stopped: what was decided before counts."""

import datetime
import logging
from collections.abc import Callable
from dataclasses import dataclass

from groundup.checkpoint import Checkpoint, CheckpointFolder, check_shapes
from groundup.config import save_yaml
from groundup.data.batches.loader import BatchLoader
from groundup.errors import ConfigError
from groundup.files import append_json_line, write_json_atomic
from groundup.model.shapes import weight_shapes
from groundup.optim.schedules import learning_rate_at
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runs.metrics_file import cut_metrics
from groundup.tokenizer import Tokenizer
from groundup.training.building import (
    RunData,
    build_evaluator,
    build_loader,
    build_state,
    open_data,
)
from groundup.training.changes import check_changes, check_saved
from groundup.training.environment import describe_environment, environment_changes
from groundup.training.evaluation import Evaluator
from groundup.training.execution import describe_kernels, device_name
from groundup.training.peak_rate import find_peak
from groundup.training.plan_lines import plan_lines
from groundup.training.state import TrainingState
from groundup.training.trackers import Tracker, open_trackers

SettleLength = Callable[[RunConfig, RunData], RunConfig]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenRun:
    """A run that is ready for its next step."""

    config: RunConfig
    folder: RunFolder
    checkpoints: CheckpointFolder
    state: TrainingState
    tokenizer: Tokenizer
    loader: BatchLoader
    evaluator: Evaluator | None
    trackers: list[Tracker]
    resumed_step: int | None
    """The step of the checkpoint it goes on from, if there is one."""


def open_run(
    config: RunConfig,
    folder: RunFolder,
    *,
    resume: bool,
    allow_changes: bool,
    settle_length: SettleLength | None = None,
) -> OpenRun:
    """Check everything that can be checked before the first step, and build the parts.

    The folder must have been claimed. Nothing in it changes before all checks have passed.
    `settle_length` may give a new run another number of steps once its data are known.
    """
    # It takes a moment on a CPU, which must not come after the steps of a run were timed.
    peak = find_peak(config)
    changes = []
    if resume:
        changes = check_changes(folder.read_config(), config, allow_changes=allow_changes)
    data = open_data(config, _load_tokenizer(config, folder, resume=resume))
    if settle_length is not None and not resume:
        config = settle_length(config, data)
    environment = _environment(config, data, peak)
    if resume:
        environment = _note_resume(environment, folder, allow_changes=allow_changes)
    checkpoints = CheckpointFolder(
        folder.checkpoints, config.checkpoints.keep_last, config.checkpoints.keep_best
    )
    checkpoint = None
    if resume and checkpoints.steps():
        checkpoint = checkpoints.newest()
        check_shapes(weight_shapes(config.model), checkpoint.model_shapes())
        if not allow_changes:
            check_saved(folder.config_file, config, checkpoint)
    loader, evaluator = build_loader(config, data.train), build_evaluator(config, data)
    state = build_state(config)
    if checkpoint is not None:
        state.restore(checkpoint)
    trackers = open_trackers(config, folder.path)
    if resume:
        write_json_atomic(folder.environment_file, environment)
        _resume(config, folder, checkpoint, state, changes)
    else:
        folder.begin(config, data.tokenizer, environment)
    _describe(config, data, state, is_timed=settle_length is not None)
    resumed_step = None if checkpoint is None else checkpoint.step
    return OpenRun(
        config,
        folder,
        checkpoints,
        state,
        data.tokenizer,
        loader,
        evaluator,
        trackers,
        resumed_step,
    )


def _load_tokenizer(config: RunConfig, folder: RunFolder, *, resume: bool) -> Tokenizer:
    """A run that has begun carries its own copy."""
    return Tokenizer.load(folder.tokenizer_file if resume else config.data.tokenizer)


def _resume(
    config: RunConfig,
    folder: RunFolder,
    checkpoint: Checkpoint | None,
    state: TrainingState,
    changes: list[str],
) -> None:
    folder.outcome_file.unlink(missing_ok=True)
    if cut_metrics(folder.metrics_file, state.step) and checkpoint is not None:
        append_json_line(folder.metrics_file, _last_record(config, state, checkpoint))
    if changes:
        _log.warning("changed settings: %s", "; ".join(changes))
        save_yaml(folder.config_file, config)
    if checkpoint is None:
        _log.info("%s has no checkpoint yet: it begins again from its first step", folder.path)
    else:
        _log.info("resumed from %s", checkpoint.path)


def _last_record(
    config: RunConfig, state: TrainingState, checkpoint: Checkpoint
) -> dict[str, object]:
    """What the checkpoint knows of the record of its step, where metrics.jsonl has lost that."""
    record: dict[str, object] = {
        "step": state.step,
        "wall_seconds": round(state.wall_seconds, 3),
        "tokens": state.tokens,
        "loss": state.loss,
        "learning_rate": learning_rate_at(
            state.step - 1, config.schedule, config.optimizer.learning_rate, config.num_steps
        ),
    }
    if checkpoint.metric is not None:
        record |= {"validation_loss": checkpoint.metric, "bits_per_byte": state.bits_per_byte}
    return record


def _note_resume(
    new: dict[str, object], folder: RunFolder, *, allow_changes: bool
) -> dict[str, object]:
    """What the run began on, with a note of this resume.

    Other data must be allowed; other versions or hardware are named.
    """
    old = folder.read_environment()
    changes = environment_changes(old, new)
    data_changes = [change for change in changes if change.startswith("data")]
    if data_changes and not allow_changes:
        raise ConfigError(
            f"the run in {folder.path} was trained on other data ({data_changes[0]}): give it the "
            f"shards it began with, or accept the change with --allow-changes"
        )
    if changes:
        _log.warning(
            "the run began under other conditions, so its last bits may differ from those of a "
            "run that was not interrupted: %s",
            "; ".join(changes),
        )
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    earlier = old.get("resumes")
    resumes = [
        *(earlier if isinstance(earlier, list) else []),
        {"started": now, "changes": changes},
    ]
    return {**old, "resumes": resumes}


def _environment(
    config: RunConfig, data: RunData, peak_flops_per_second: float | None
) -> dict[str, object]:
    name, kernels = device_name(config), describe_kernels(config)
    end_id = data.train.index.end.id
    return describe_environment(config, name, kernels, data.ids, end_id, peak_flops_per_second)


def _describe(config: RunConfig, data: RunData, state: TrainingState, *, is_timed: bool) -> None:
    splits = [f"{count:,} ids for {name}" for name, count in data.ids.num_ids.items()]
    _log.info("data in %s: %s, order %s", config.data.shards, ", ".join(splits), config.data.order)
    vocab_size, num_tokens = config.model.vocab_size, len(data.tokenizer.vocab)
    if vocab_size > num_tokens:
        _log.info(
            "the model has %s ids and the tokenizer %s tokens: %s ids can never occur",
            *(f"{number:,}" for number in (vocab_size, num_tokens, vocab_size - num_tokens)),
        )
    tokens_in_corpus = data.train.num_ids
    for line in plan_lines(config, tokens_in_corpus, steps_done=state.step, is_timed=is_timed):
        _log.info(line)
    _log.info(describe_kernels(config))
    if state.step:
        _log.info("going on after step %d of %d", state.step, config.num_steps)
