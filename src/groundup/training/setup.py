"""Beginning a run, or finding it again where it stopped: everything is checked and built here, and
nothing in its folder changes before all checks have passed."""

import logging
from dataclasses import dataclass

from groundup.checkpoint import Checkpoint, CheckpointFolder
from groundup.data.chats.packing import PackedRows
from groundup.distributed.process_group import World
from groundup.errors import ConfigError
from groundup.runs.folder import RunFolder
from groundup.training.callbacks import Callback, WeightsAndBiases
from groundup.training.data import RunData
from groundup.training.environment import check_changes, describe_environment, note_resume
from groundup.training.overrides import Overrides
from groundup.training.resolve import ResolvedRun
from groundup.training.start import Start
from groundup.training.state import TrainingState, build_state, open_checkpoints

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenRun:
    """A run that is ready for its next step."""

    run: ResolvedRun
    folder: RunFolder
    data: RunData
    state: TrainingState
    checkpoints: CheckpointFolder
    trackers: list[Callback]


def open_run(
    run: ResolvedRun,
    data: RunData,
    folder: RunFolder,
    overrides: Overrides,
    world: World,
    *,
    resume: bool,
    allow_changes: bool,
) -> OpenRun:
    """Check everything that can be checked before the first step, and build the parts.

    The folder must have been claimed; the first rank writes to it once all have passed the checks.
    """
    config = run.config
    environment = describe_environment(config, data.ids, data.end_id)
    facts = {f"version of {name}": environment[name] for name in ("groundup", "torch", "numpy")}
    world.check_same(facts | {f"data ({key})": one for key, one in environment["data"].items()})
    is_sharded = run.strategy != "ddp"
    checkpoints = open_checkpoints(config, folder.checkpoints, is_sharded, world)
    checkpoint: Checkpoint | None = None
    changes: list[str] = []
    if resume:
        if world.from_first(bool(checkpoints.steps())):
            # To hash all of it is one rank's work.
            checkpoint = world.from_first(checkpoints.newest() if world.is_first else None)
        # The checkpoint's own settings: a digit may have flipped in the run folder.
        settings = None if checkpoint is None else checkpoint.state.get("settings")
        if not isinstance(settings, dict):
            settings = folder.read_config().model_dump(mode="json")
        changes = check_changes(settings, config, allow_changes=allow_changes)
        if checkpoint is not None and checkpoint.step > (config.num_steps or checkpoint.step):
            raise ConfigError(
                f"{checkpoint.path} is past num_steps {config.num_steps}: give more --num-steps"
            )
    start = None
    if config.start_from is not None and checkpoint is None:
        start = Start.open(config.start_from, config.model, data.tokenizer)
        environment |= start.describe(is_tuned=bool(config.tuning.chats))
    if resume:
        environment = note_resume(environment, folder, allow_changes=allow_changes)
    parts = start, overrides.get("model"), world, data.document_id(config)
    state = build_state(run, data.tokenizer, *parts)
    if checkpoint is not None:
        state.restore(checkpoint)
    # What a rank finds wrong by itself it has found by now.
    world.gather(None)
    trackers: list[Callback] = []
    if world.is_first and config.logging.wandb:
        trackers.append(WeightsAndBiases(config, folder.path))
    if world.is_first and resume:
        folder.go_back(config, environment, state.step)
    elif world.is_first:
        folder.begin(config, data.tokenizer, environment)
    if changes:
        _log.warning("changed settings: %s", "; ".join(changes))
    if checkpoint is not None:
        _log.info("resumed from %s", checkpoint.path)
    elif start is not None:
        _log.info("begins with the weights of %s", start.checkpoint.path)
    splits = ", ".join(f"{count:,} ids for {name}" for name, count in data.ids.num_ids.items())
    _log.info("data in %s: %s", ", ".join(config.data.mix) or data.ids.folder, splits)
    if isinstance(data.train, PackedRows) and (num_cut := data.train.conversations.num_cut):
        length = config.model.context_length
        _log.warning("%d conversations cut at --context-length %d, or left out", num_cut, length)
    _log.info(run.describe(world.size))
    return OpenRun(run, folder, data, state, checkpoints, trackers)
