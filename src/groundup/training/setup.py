"""Beginning a run, or finding it again where it stopped: data checked, parts built, plan logged."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from groundup.checkpoint import Checkpoint, CheckpointFolder, check_shapes
from groundup.config import save_yaml
from groundup.data.batches.loader import BatchLoader
from groundup.distributed.muon import CopiedMatrices
from groundup.distributed.process_group import ALONE, World
from groundup.distributed.reduction import Accumulated, ExactReduction, FastReduction, Reduction
from groundup.errors import ConfigError
from groundup.files import append_json_line, write_json_atomic
from groundup.model import TransformerLM
from groundup.model.transformer import weight_shapes
from groundup.optim.build import build_optimizer
from groundup.optim.muon import Matrices, Muon
from groundup.optim.orthogonalization import orthogonalize, orthogonalize_each
from groundup.planner import (
    Execution,
    check_holdable,
    describe_cpu,
    expected_duration,
    memory_line,
    time_line,
    two_line_plan,
)
from groundup.planner.distributed import Strategy
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runs.metrics_file import cut_metrics
from groundup.runtime import memory_bytes, set_seed
from groundup.tokenizer import Tokenizer
from groundup.training.changes import (
    check_changes,
    check_saved,
    describe_environment,
    note_resume,
)
from groundup.training.evaluation import Evaluate
from groundup.training.execution import (
    choose_strategy,
    compile_model,
    describe_kernels,
    device_name,
    find_peak,
    matmul_precision,
    num_shards,
    planned_memory,
    reduces_exactly,
)
from groundup.training.metrics import base_record, learning_rate_of
from groundup.training.own_parts import NO_PARTS, OwnParts
from groundup.training.run_data import (
    RunData,
    build_evaluator,
    build_loader,
    find_document_id,
    open_data,
)
from groundup.training.start import Start
from groundup.training.state import TrainingState
from groundup.training.tasks import TaskEvaluator, build_tasks
from groundup.training.trackers import Tracker, open_trackers
from groundup.training.tuning import (
    adapt,
    with_template,
)

if TYPE_CHECKING:
    from groundup.distributed.sharding import LocalParameters
    from groundup.training.budget import TimeBudget

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
    evaluator: Evaluate | None
    tasks: TaskEvaluator | None
    trackers: list[Tracker]
    resumed_step: int | None
    """The step of the checkpoint it resumes from, if it does."""


def open_run(
    config: RunConfig,
    folder: RunFolder,
    *,
    resume: bool,
    allow_changes: bool,
    choose_length: Callable[[RunConfig, RunData], RunConfig] | None = None,
    budget: "TimeBudget | None" = None,
    own: OwnParts = NO_PARTS,
    world: World = ALONE,
) -> OpenRun:
    """Check everything that can be checked before the first step, and build the parts.

    The folder must have been claimed. Nothing in it changes before all checks have passed, on all
    ranks of the `world`; then the first rank alone writes to it.
    `choose_length` gives a new run its number of steps once its data are known; where it has timed
    them for a `budget`, the plan guesses no time. `own` parts take the place of what the settings
    say.
    """
    # It takes a moment on a CPU, which must not come after the steps of a run were timed.
    peak = find_peak(config)
    changes = []
    if resume:
        changes = check_changes(folder.read_config(), config, allow_changes=allow_changes)
    if not resume and not config.data.tokenizer.exists():
        raise ConfigError(
            f"the tokenizer {config.data.tokenizer} does not exist: name the one that the shards "
            f"were made with by --data.tokenizer"
        )
    # A run that has begun carries its own copy.
    tokenizer = Tokenizer.load(folder.tokenizer_file if resume else config.data.tokenizer)
    if config.tuning.chats and not resume:
        tokenizer = with_template(tokenizer, config.tuning.template)
    data = open_data(config, tokenizer, own)
    if choose_length is not None:
        config = choose_length(config, data)
    environment = describe_environment(config, data.ids, data.end_id, peak)
    if budget is not None:
        environment |= budget.to_json()
    world.check_same(_facts(environment))
    if resume:
        environment = note_resume(environment, folder, allow_changes=allow_changes)
    strategy = world.from_first(choose_strategy(config, world))
    checkpoints = open_checkpoints(config, folder, world, strategy)
    checkpoint = None
    if world.from_first(resume and bool(checkpoints.steps())):
        # To hash all of it is one rank's work.
        checkpoint = world.from_first(checkpoints.newest() if world.is_first else None)
        assert checkpoint is not None
        check_shapes(_shapes_of(config, own), checkpoint.model_shapes())
        check_saved(folder, config, checkpoint, environment, allow_changes=allow_changes)
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
    tasks = build_tasks(config, tokenizer, data.end_id)
    document_id = find_document_id(config, data)
    state = build_state(config, tokenizer, start, own.model, world, strategy, document_id)
    if checkpoint is not None:
        state.restore(checkpoint)
        if evaluator is None:
            # What the checkpoint measured on a split that is gone is not this run's standing.
            state.validation_loss = state.bits_per_byte = None
    elif start is not None:
        _log.info("begins with the weights of %s", start.checkpoint.path)
    # What a rank finds wrong by itself it has found by now.
    world.gather(None)
    trackers = open_trackers(config, folder.path) if world.is_first else []
    if not world.is_first:
        pass
    elif resume:
        write_json_atomic(folder.environment_file, environment)
        _go_back(config, folder, checkpoint, state, changes)
    else:
        folder.begin(config, tokenizer, environment)
    _log_plan(config, data, state, strategy, is_timed=budget is not None)
    if world.size > 1:
        is_exact = isinstance(state.reduction, ExactReduction)
        way = "exact" if is_exact else f"fast, in {config.distributed.reduce_dtype}"
        _log.info("%d ranks: strategy %s, reduction %s", world.size, strategy, way)
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
        resumed_step=None if checkpoint is None else checkpoint.step,
    )


def _check_start(folder: RunFolder, start: Start) -> None:
    """Refuse to begin again, where nothing was saved yet, with other weights than at first."""
    known, found = folder.read_environment().get("start_from"), start.lineage()
    if isinstance(known, dict) and known.get("weights") != found["weights"]:
        raise ConfigError(
            f"the run in {folder.path} began with step {known.get('step')} of {found['run']}, "
            f"which is at step {found['step']} now, and has no checkpoint yet: begin a new run, or "
            f"accept the change with --allow-changes"
        )


def build_state(
    config: RunConfig,
    tokenizer: Tokenizer | None = None,
    start: Start | None = None,
    model: TransformerLM | None = None,
    world: World = ALONE,
    strategy: Strategy = "ddp",
    document_id: int | None = None,
) -> TrainingState:
    """A model with its first weights, on the run's device, and its optimizer.

    config: of the run.
    tokenizer: whose special tokens learn beside adapters.
    start: where the first weights come from, if not from the seed.
    model: learns instead of a new one.
    world, strategy: the ranks, and how they hold the weights.
    document_id: what begins a document, if tokens are to see their own alone.
    """
    check_holdable(config.model, memory_bytes())
    set_seed(config.seed)
    # Made on the CPU, so that a seed gives the same weights whatever they move to.
    if model is None:
        model = TransformerLM.from_config(config.model, device="cpu")
    model.document_id = document_id
    if start is not None:
        start.load_into(model)
    if config.tuning.lora_rank is not None:
        special = () if tokenizer is None else sorted(tokenizer.special_tokens.values())
        adapt(model, config.tuning.lora_rank, special)
    if config.distributed.recompute:
        from groundup.distributed.sharding import recompute_blocks

        recompute_blocks(model)
    # Of a sharded one no more than a block is ever whole on the device.
    if strategy == "ddp":
        model = model.to(torch.device(config.device))
    model.use_float8(config.precision == "float8")
    compile_model(model, config)
    dtype = torch.bfloat16 if config.distributed.reduce_dtype == "bfloat16" else None
    local: LocalParameters | None = None
    reduction: Reduction
    matrices: Matrices
    if strategy == "ddp":
        reduction = choose_reduction(config, world, dtype)
        way = orthogonalize_each if reduces_exactly(config) else orthogonalize
        matrices = CopiedMatrices(world, way)
    else:
        from groundup.distributed.sharding import shard

        reduction = shard(model, world, strategy, torch.device(config.device), dtype)
        local, matrices = reduction.parameters, reduction.matrices()
    optimizer = build_optimizer(local or model, config.optimizer, config.num_steps)
    if isinstance(optimizer, Muon):
        optimizer.matrices = matrices
    if config.device.startswith("cuda"):
        # A number and a tensor round differently, and a recorded step can only read a tensor: with
        # numbers in the plain steps a resumed run would not have the bits of an uninterrupted one.
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), device=config.device)
    return TrainingState(model, optimizer, config.tokens_per_step, reduction, local)


def open_checkpoints(
    config: RunConfig, folder: RunFolder, world: World, strategy: Strategy
) -> CheckpointFolder:
    """Where the run's checkpoints are, and how they are written."""
    path, settings = folder.checkpoints, config.checkpoints
    if strategy == "ddp":
        return CheckpointFolder(path, settings.keep_last, settings.keep_best)
    from groundup.checkpoint.sharded import ShardedFolder

    # The thread that writes must not come between what others say in a group of theirs.
    group = distributed.new_group(backend="gloo")
    return ShardedFolder(path, settings.keep_last, settings.keep_best, group=group)


def choose_reduction(
    config: RunConfig, world: World, dtype: torch.dtype | None = None
) -> Reduction:
    """How the gradients of all micro-batches and ranks are summed, as the resolved settings say.

    config: of the run.
    world: the ranks, each with all weights.
    dtype: what the fast reduction sends; the gradients' own type by default.
    """
    if reduces_exactly(config):
        return ExactReduction(world)
    return FastReduction(world, dtype) if world.size > 1 else Accumulated()


def _facts(environment: dict[str, Any]) -> dict[str, Any]:
    """What all ranks must have in common, by the name that an error gives it."""
    facts = {f"version of {name}": environment[name] for name in ("groundup", "torch", "numpy")}
    return facts | {f"data ({name})": value for name, value in environment["data"].items()}


def _shapes_of(config: RunConfig, own: OwnParts) -> dict[str, tuple[int, ...]]:
    """What a checkpoint of the run has to hold."""
    if own.model is None:
        return weight_shapes(config.model)
    return {name: tuple(value.shape) for name, value in own.model.state_dict().items()}


def plan_lines(
    config: RunConfig,
    tokens_in_corpus: int,
    *,
    steps_done: int = 0,
    is_timed: bool = False,
    num_ranks: int = 1,
    num_shards: int = 1,
) -> list[str]:
    """Parameters, tokens and operations, memory of a rank, and time and price of the steps that are
    left.

    config, tokens_in_corpus, steps_done: the run, resolved, its text, and how far it has come.
    is_timed: whether it has measured its steps and said so: of its time nothing is guessed.
    num_ranks, num_shards: that share the batches, and the weights.
    """
    lines = two_line_plan(
        config.model,
        config.batch_size,
        config.num_steps,
        tokens_in_corpus=tokens_in_corpus,
        optimizer=config.optimizer.name,
        ema=config.optimizer.average_over is not None,
        lora_rank=config.tuning.lora_rank,
    )
    num_sequences = -(-config.batch_size // num_ranks)
    size = min(config.sequences_in_memory, num_sequences)
    lines.append(memory_line(planned_memory(config).shard(num_shards), size, num_sequences))
    steps_left = config.num_steps - steps_done
    peak = None if is_timed or steps_left < 1 else find_peak(config)
    if peak is not None:
        kind = Execution.of(config.device, config.precision).device
        is_cpu = kind == "cpu"
        duration = expected_duration(
            config.model,
            batch_size=num_sequences,
            num_steps=steps_left,
            peak_flops_per_second=peak,
            device=describe_cpu(torch.get_num_threads(), 0).name if is_cpu else device_name(config),
            kind=kind,
            precision=matmul_precision(config),
        )
        lines.append(time_line(duration, num_ranks))
    return lines


def _go_back(
    config: RunConfig,
    folder: RunFolder,
    checkpoint: Checkpoint | None,
    state: TrainingState,
    changes: list[str],
) -> None:
    """Put the files of a run back to where its checkpoint is."""
    folder.outcome_file.unlink(missing_ok=True)
    if cut_metrics(folder.metrics_file, state.step) and checkpoint is not None:
        # The record of the checkpoint's step is lost: what the checkpoint knows of it.
        record = base_record(state, state.wall_seconds)
        record |= {"loss": state.loss, "learning_rate": learning_rate_of(config, state.step)}
        if checkpoint.metric is not None:
            record |= {"validation_loss": checkpoint.metric, "bits_per_byte": state.bits_per_byte}
        append_json_line(folder.metrics_file, record)
    if changes:
        _log.warning("changed settings: %s", "; ".join(changes))
        save_yaml(folder.config_file, config)
    if checkpoint is None:
        _log.info("%s has no checkpoint yet: it begins again from its first step", folder.path)
    else:
        _log.info("resumed from %s", checkpoint.path)


def _log_plan(
    config: RunConfig, data: RunData, state: TrainingState, strategy: Strategy, *, is_timed: bool
) -> None:
    splits = [f"{count:,} ids for {name}" for name, count in data.ids.num_ids.items()]
    order = "" if config.tuning.chats else f", order {config.data.order}"
    folders = ", ".join(config.data.mix) or data.ids.folder
    _log.info("data in %s: %s%s", folders, ", ".join(splits), order)
    vocab_size, num_tokens = config.model.vocab_size, len(data.tokenizer.vocab)
    if vocab_size > num_tokens:
        _log.info(
            "the model has %s ids and the tokenizer %s tokens: %s ids can never occur",
            *(f"{number:,}" for number in (vocab_size, num_tokens, vocab_size - num_tokens)),
        )
    world = state.reduction.world
    for line in plan_lines(
        config,
        data.train.num_ids,
        steps_done=state.step,
        is_timed=is_timed,
        num_ranks=world.size,
        num_shards=num_shards(strategy, world),
    ):
        _log.info(line)
    _log.info(describe_kernels(config))
    if state.step:
        _log.info("resuming after step %d of %d", state.step, config.num_steps)
