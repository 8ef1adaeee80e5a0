"""Beginning a run, or finding it again where it stopped: checks, parts built, plan logged."""

import logging
from dataclasses import dataclass

from groundup.checkpoint import Checkpoint, CheckpointFolder, check_shapes
from groundup.config import save_yaml
from groundup.data.batches.loader import BatchLoader
from groundup.distributed.process_group import ALONE, World
from groundup.errors import ConfigError
from groundup.files import write_json_atomic
from groundup.model import TransformerLM
from groundup.model.transformer import weight_shapes
from groundup.planner.plan import plan_lines
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runs.metrics_file import cut_metrics
from groundup.tokenizer import Tokenizer
from groundup.training.build import build_state
from groundup.training.callbacks import Tracker, open_trackers
from groundup.training.data import RunData, build_evaluator, build_loader, find_document_id
from groundup.training.environment import check_changes, describe_environment, note_resume
from groundup.training.evaluation import Evaluator
from groundup.training.execution import describe_kernels
from groundup.training.machine import Machine, find_peak
from groundup.training.resolve import ResolvedRun, planned_memory
from groundup.training.start import Start
from groundup.training.state import TrainingState
from groundup.training.tasks import TaskEvaluator, build_tasks

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
    tasks: TaskEvaluator | None
    trackers: list[Tracker]
    peak_flops_per_second: float | None
    resumed_step: int | None
    """The step of the checkpoint it resumes from, if it does."""


def open_run(
    run: ResolvedRun,
    data: RunData,
    folder: RunFolder,
    *,
    resume: bool,
    allow_changes: bool,
    model: TransformerLM | None = None,
    world: World = ALONE,
) -> OpenRun:
    """Check everything that can be checked before the first step, and build the parts.

    The folder must have been claimed. Nothing in it changes before all checks have passed, on all
    ranks of the `world`; then the first rank alone writes to it. `model` learns instead of a new
    one.
    """
    config, tokenizer = run.config, data.tokenizer
    peak = find_peak(config)
    environment = describe_environment(config, data.ids, data.end_id, peak)
    facts = {f"version of {name}": environment[name] for name in ("groundup", "torch", "numpy")}
    world.check_same(facts | {f"data ({key})": one for key, one in environment["data"].items()})
    checkpoints = open_checkpoints(run, folder)
    checkpoint, changes = None, []
    if resume:
        if world.from_first(bool(checkpoints.steps())):
            # To hash all of it is one rank's work.
            checkpoint = world.from_first(checkpoints.newest() if world.is_first else None)
        changes = _check_resume(run, folder, checkpoint, model, allow_changes=allow_changes)
        environment = note_resume(environment, folder, allow_changes=allow_changes)
    start = None
    if config.start_from is not None and checkpoint is None:
        start = Start.open(config.start_from, config.model, tokenizer)
        if resume and not allow_changes:
            _check_start(folder, start)
        environment["start_from"] = start.lineage()
        if config.tuning.chats:
            environment |= start.special_ids()
    loader = build_loader(config, data.train, world)
    evaluator = build_evaluator(config, data, world)
    tasks = build_tasks(config, tokenizer, data.end_id, world)
    state = build_state(run, tokenizer, start, model, world, find_document_id(config, data))
    if checkpoint is not None:
        state.restore(checkpoint)
        if evaluator is None:
            # What the checkpoint measured on a split that is gone is not this run's loss.
            state.validation_loss = state.bits_per_byte = None
    elif start is not None:
        _log.info("begins with the weights of %s", start.checkpoint.path)
    # What a rank finds wrong by itself it has found by now.
    world.gather(None)
    trackers = open_trackers(config, folder.path) if world.is_first else []
    if world.is_first and resume:
        write_json_atomic(folder.environment_file, environment)
        _go_back(config, folder, checkpoint, state, changes)
    elif world.is_first:
        folder.begin(config, tokenizer, environment)
    _log_plan(run, data, state)
    return OpenRun(
        config,
        folder,
        checkpoints,
        state,
        tokenizer,
        loader,
        evaluator,
        tasks,
        trackers,
        peak,
        resumed_step=None if checkpoint is None else checkpoint.step,
    )


def open_checkpoints(run: ResolvedRun, folder: RunFolder) -> CheckpointFolder:
    """Where the run's checkpoints are, and how they are written."""
    settings = run.config.checkpoints
    if run.strategy == "ddp":
        return CheckpointFolder(folder.checkpoints, settings.keep_last, settings.keep_best)
    from torch import distributed

    from groundup.checkpoint.sharded import ShardedFolder

    # The thread that writes must not come between what others say in a group of theirs.
    group = distributed.new_group(backend="gloo")
    return ShardedFolder(folder.checkpoints, settings.keep_last, settings.keep_best, group=group)


def _check_resume(
    run: ResolvedRun,
    folder: RunFolder,
    checkpoint: Checkpoint | None,
    model: TransformerLM | None,
    *,
    allow_changes: bool,
) -> list[str]:
    """Hold the settings against those that the checkpoint was saved with: a digit may have flipped
    in the run folder. Gives what differs."""
    config, settings = run.config, folder.read_config().model_dump(mode="json")
    if checkpoint is None:
        return check_changes(settings, config, allow_changes=allow_changes)
    saved = checkpoint.state.get("settings")
    changes = check_changes(
        saved if isinstance(saved, dict) else settings, config, allow_changes=allow_changes
    )
    shapes = weight_shapes(config.model)
    if model is not None:
        shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    check_shapes(shapes, checkpoint.model_shapes())
    if config.num_steps is not None and checkpoint.step > config.num_steps:
        raise ConfigError(
            f"the run in {folder.path} is already at step {checkpoint.step:,}, past num_steps="
            f"{config.num_steps:,}: give more steps with --num-steps"
        )
    return changes


def _check_start(folder: RunFolder, start: Start) -> None:
    """Refuse to begin again, where nothing was saved yet, with other weights than at first."""
    known, found = folder.read_environment().get("start_from"), start.lineage()
    if isinstance(known, dict) and known.get("weights") != found["weights"]:
        raise ConfigError(
            f"the run in {folder.path} began with step {known.get('step')} of {found['run']}, "
            f"which is at step {found['step']} now, and has no checkpoint yet: begin a new run, or "
            f"accept the change with --allow-changes"
        )


def _go_back(
    config: RunConfig,
    folder: RunFolder,
    checkpoint: Checkpoint | None,
    state: TrainingState,
    changes: list[str],
) -> None:
    """Put the files of a run back to where its checkpoint is."""
    folder.outcome_file.unlink(missing_ok=True)
    cut_metrics(folder.metrics_file, state.step)
    if changes:
        _log.warning("changed settings: %s", "; ".join(changes))
    save_yaml(folder.config_file, config)
    if checkpoint is None:
        _log.info("%s has no checkpoint yet: it begins again from its first step", folder.path)
    else:
        _log.info("resumed from %s", checkpoint.path)


def _log_plan(run: ResolvedRun, data: RunData, state: TrainingState) -> None:
    """Say what is trained: data, parameters, tokens and operations, memory of a rank, kernels."""
    config, world = run.config, state.reduction.world
    splits = [f"{count:,} ids for {name}" for name, count in data.ids.num_ids.items()]
    _log.info("data in %s: %s", ", ".join(config.data.mix) or data.ids.folder, ", ".join(splits))
    num_rows = -(-config.batch_size // world.size)
    memory = planned_memory(config, Machine.detect(config.device).memory_bytes)
    for line in plan_lines(
        memory.shard(run.num_shards),
        batch_size=config.batch_size,
        num_rows=num_rows,
        micro_batch=min(config.sequences_in_memory, num_rows),
        num_steps=config.num_steps,
        tokens_in_corpus=data.train.num_ids,
        lora_rank=config.tuning.lora_rank,
    ):
        _log.info(line)
    _log.info(describe_kernels(config))
    if world.size > 1:
        way = "exact" if run.is_exact else f"fast, in {config.distributed.reduce_dtype}"
        _log.info("%d ranks: strategy %s, reduction %s", world.size, run.strategy, way)
    if config.minutes is not None:
        _log.info("the schedule follows the clock, for %g minutes in all", config.minutes)
