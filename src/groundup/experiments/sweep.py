"""A sweep from its settings to its results: points, trials, runs, and what each point came to."""

import contextlib
import logging
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from groundup.data.shards import ShardIndex, check_vocabulary, read_index
from groundup.errors import ConfigError, DataError
from groundup.experiments import ablation, isoflop
from groundup.experiments.points import (
    NUM_RANDOM,
    check_packages,
    grid_points,
    known_points,
    propose,
)
from groundup.experiments.runner import (
    Command,
    Runner,
    make_workers,
    train_command,
)
from groundup.experiments.spec import SweepConfig, base_config
from groundup.experiments.sweep_folder import SweepFolder
from groundup.experiments.trials import (
    LEARNING_RATE,
    Point,
    PointResult,
    Status,
    Trial,
    TrialRecord,
    make_trial,
    summarize,
)
from groundup.training.resolve import resolve_device

_SHARDS, _TOKENIZER = "data.shards", "data.tokenizer"
# Of the tokens of a sweep, before it is said that whole steps do not come to them.
_MOST_OFF = 0.05

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SweepOutcome:
    """Where a sweep stands when it returns."""

    folder: Path
    results: list[PointResult]
    """The best first; points with trials that did not finish after all others."""
    records: dict[str, TrialRecord] = field(default_factory=dict)
    stopped_by: signal.Signals | None = None


@dataclass(frozen=True)
class Outlook:
    """What a sweep would do if it were run now."""

    trials: list[Trial]
    """All that are known: a search proposes others later."""
    left: list[Trial]
    """Those that would run. One that is still to be proposed stands there as the base."""
    num_to_propose: int = 0
    """How many points a search still has to propose."""


def run_sweep(
    spec: SweepConfig,
    path: Path,
    *,
    points: Sequence[Point] | None = None,
    seeds: Sequence[int] | None = None,
    jobs: int | None = None,
    command: Command = train_command,
) -> SweepOutcome:
    """Run what has not been run yet and say what all of it came to.

    The same call goes on after a stop or a kill: trials that ended are kept, one that was under
    way is resumed, and those that failed are tried again.

    spec: what is tried.
    path: the folder of the sweep.
    points, seeds: a part of the sweep instead of all of it.
    jobs: trials at once; one on each CUDA device, or one on a CPU if not given.
    command: the command line of a trial.
    """
    folder = SweepFolder(path)
    outlook = _look(spec, folder, points, seeds or spec.seeds)
    if command is train_command:
        # Another command may do without data.
        _check_data(spec, folder, outlook)
        # A device or precision that this machine lacks is told before a trial fails on it.
        configs = [trial.config for trial in outlook.left]
        for config in {(one.device, one.precision): one for one in configs}.values():
            resolve_device(config)
    with folder.claim():
        folder.begin(spec)
        workers = make_workers(base_config(spec), jobs)
        is_search = points is None and spec.is_search
        found = _search(spec, folder) if is_search else iter(outlook.trials)
        runner = Runner(folder, spec, workers, command)
        stopped_by = runner.run(_unended(folder, found))
        records = folder.records()
        return SweepOutcome(path, summarize(records.values()), records, stopped_by)


def run_ablation(
    spec: SweepConfig,
    path: Path,
    *,
    extra_rates: int = ablation.EXTRA_RATES,
    jobs: int | None = None,
    command: Command = train_command,
) -> SweepOutcome:
    """Find each variant's best learning rate with the first seed, then repeat it with the others.

    A best one at an end of those tried calls for the next beyond, at most `extra_rates` on a side;
    all variants' next ones run together.
    """
    rates = [float(rate) for rate in spec.grid[LEARNING_RATE]]
    asked = {name: set(rates) for name in spec.variants}
    points = [Point({LEARNING_RATE: rate}, name) for name in spec.variants for rate in rates]
    while points:
        outcome = run_sweep(
            spec, path, points=points, seeds=spec.seeds[:1], jobs=jobs, command=command
        )
        if outcome.stopped_by is not None:
            return outcome
        tried = ablation.read_tried(spec, outcome.records.values())
        points = []
        for name, known in tried.items():
            rate = ablation.next_rate(known, rates, asked[name], extra_rates)
            if rate is not None:
                _log.info("%s wants a learning rate beyond those tried: %g", name, rate)
                asked[name].add(rate)
                points.append(Point({LEARNING_RATE: rate}, name))
    if len(spec.seeds) > 1:
        chosen = [
            Point({LEARNING_RATE: known.best}, name)
            for name, known in tried.items()
            if known.best is not None
        ]
        outcome = run_sweep(spec, path, points=chosen, jobs=jobs, command=command)
    return outcome


def run_isoflop(
    spec: SweepConfig,
    path: Path,
    *,
    check: bool = True,
    jobs: int | None = None,
    command: Command = train_command,
) -> SweepOutcome:
    """Train every size with every budget and, with `check`, the size predicted for the next one."""
    outcome = run_sweep(spec, path, jobs=jobs, command=command)
    if outcome.stopped_by is not None or not check:
        return outcome
    prediction = isoflop.analyse(spec, outcome.records.values()).prediction
    name = isoflop.variant_name(prediction.budget_flops, prediction.d_model)
    bundle = isoflop.variant(base_config(spec), prediction.budget_flops, prediction.d_model)
    grown = spec.model_copy(update={"variants": {**spec.variants, name: bundle}})
    points = [Point({LEARNING_RATE: rate}, name) for rate in spec.grid[LEARNING_RATE]]
    return run_sweep(grown, path, points=points, jobs=jobs, command=command)


def look_ahead(spec: SweepConfig, path: Path) -> Outlook:
    """Make the checks that `run_sweep` would make and find what it would run; write nothing."""
    folder = SweepFolder(path)
    outlook = _look(spec, folder, None, spec.seeds)
    _check_data(spec, folder, outlook)
    return outlook


def plan_trials(
    spec: SweepConfig, path: Path, points: Sequence[Point] | None = None
) -> list[Trial]:
    """The trials of some points, or of all that are known before the sweep begins.

    A mistake in one is found before any of them runs.
    """
    if points is None:
        points = [] if spec.is_search else known_points(spec)
    runs = SweepFolder(path).runs
    trials = [make_trial(spec, point, seed, runs) for point in points for seed in spec.seeds]
    different = {trial.name: trial for trial in trials}
    if spec.sampler == "random" and len(different) < len(trials):
        num_different = len(different) // len(spec.seeds)
        _log.info("%d points were sampled, %d of them different", len(points), num_different)
    for trial in different.values():
        num_tokens = (trial.config.num_steps or 0) * trial.config.tokens_per_step
        if spec.tokens is not None and abs(num_tokens - spec.tokens) > _MOST_OFF * spec.tokens:
            _log.warning(
                "%s trains on %s tokens, not %s: its steps have %s each",
                trial.name,
                f"{num_tokens:,}",
                f"{spec.tokens:,}",
                f"{trial.config.tokens_per_step:,}",
            )
            break
    return list(different.values())


def _look(
    spec: SweepConfig, folder: SweepFolder, points: Sequence[Point] | None, seeds: Sequence[int]
) -> Outlook:
    check_packages(spec.sampler)
    trials = plan_trials(spec, folder.path, points)
    folder.check(spec)
    folder.check_settings(trials)
    num_to_propose = 0
    if points is None and spec.is_search:
        proposed = folder.proposals()
        for point in proposed:
            # One that cannot be built has no trials; the sweep leaves it out too.
            with contextlib.suppress(ConfigError):
                found = plan_trials(spec, folder.path, [point])
                folder.check_settings(found)
                trials += found
        num_to_propose = max(0, (spec.num_trials or 0) - len(proposed))
    trials = list({one.name: one for one in trials if one.config.seed in seeds}.values())
    left = folder.left(trials)
    if num_to_propose:
        left += num_to_propose * plan_trials(spec, folder.path, [Point({})])
    return Outlook(trials, left, num_to_propose)


def _search(spec: SweepConfig, folder: SweepFolder) -> Iterator[Trial]:
    """The trials of every point that was proposed, then of new ones until there are num_trials."""
    assert spec.num_trials is not None
    if spec.sampler in ("tpe", "gp") and spec.num_trials <= NUM_RANDOM:
        _log.info(
            "the first %d points of sampler %s are random: with num_trials %d it learns nothing "
            "yet",
            NUM_RANDOM,
            spec.sampler,
            spec.num_trials,
        )
    points, names = folder.proposals(), list[str | None]()
    for number in range(max(len(points), spec.num_trials)):
        if number == len(points):
            points.append(propose(spec, _history(spec, folder, points, names)))
            folder.add_proposal(points[-1])
        try:
            trials = plan_trials(spec, folder.path, points[number : number + 1])
            folder.check_settings(trials)
        except ConfigError as error:
            _log.warning("a proposal is left out: %s", error)
            names.append(None)
        else:
            names.append(trials[0].point)
            yield from trials


def _history(
    spec: SweepConfig,
    folder: SweepFolder,
    points: Sequence[Point],
    names: Sequence[str | None],
) -> list[tuple[Point, Status | None, float | None]]:
    """How points ended, by their names; one that could not be built counts as lost."""
    records = folder.records().values()
    # A failure says nothing about its point.
    found: dict[str | None, tuple[Status, float | None]] = {None: ("diverged", None)}
    for result in summarize(record for record in records if record.status != "failed"):
        if len(result.records) >= len(spec.seeds):
            loss = result.loss.mean if result.loss and result.is_sound else None
            found[result.point] = ("diverged" if loss is None else "finished", loss)
    return [
        (point, *found.get(name, (None, None))) for point, name in zip(points, names, strict=True)
    ]


def _unended(folder: SweepFolder, trials: Iterator[Trial]) -> Iterator[Trial]:
    """Those that have not ended, and those that failed before, each once."""
    records, asked = folder.records(), set[str]()
    for trial in trials:
        record = records.get(trial.name)
        if trial.name not in asked and (record is None or record.status == "failed"):
            asked.add(trial.name)
            yield trial


def _check_data(spec: SweepConfig, folder: SweepFolder, outlook: Outlook) -> None:
    """Raise for the first trial still to run whose data are missing, or have ids that its model
    does not know; what has ended needs none."""
    left = list(outlook.left)
    if outlook.num_to_propose:
        # All data that a search may propose; whatever else it tries is the base's.
        chosen = {name: spec.grid[name] for name in (_SHARDS, _TOKENIZER) if name in spec.grid}
        for point in grid_points(spec.model_copy(update={"grid": chosen, "ranges": {}})):
            # A variant may need what is left out here.
            with contextlib.suppress(ConfigError):
                left += plan_trials(spec, folder.path, [point])
    is_size_tried = "model.vocab_size" in (*spec.grid, *spec.ranges)
    planned = {trial.name for trial in outlook.trials}
    states, known = folder.states(left), set[tuple[str, Path]]()
    indexes = dict[Path, ShardIndex]()
    for trial in left:
        data = trial.config.data
        needed = {(_SHARDS, shards) for shards in data.folders}
        if states[trial.name] == "to run":
            # One that has begun carries its own copy.
            needed.add((_TOKENIZER, data.tokenizer))
        for setting, path in sorted(needed - known):
            where = f"{setting} of trial {trial.name}"
            if setting == _SHARDS:
                try:
                    indexes[path] = read_index(path)
                except DataError as error:
                    raise DataError(f"{where}: {error}") from error
            elif not path.is_file():
                what = "is not a file" if path.exists() else "does not exist"
                raise DataError(
                    f"{where}: {path} {what}; name the tokenizer of the shards, or make one with "
                    f"groundup tokenizer train"
                )
        known |= needed
        if trial.config.tuning.chats or (is_size_tried and trial.name not in planned):
            # Conversations take the place of the shards; a search will give another size.
            continue
        try:
            for shards in data.folders:
                check_vocabulary(indexes[shards], trial.config.model.vocab_size)
        except ConfigError as error:
            raise ConfigError(f"trial {trial.name}: {error}") from error
