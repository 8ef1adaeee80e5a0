"""A sweep from its settings to its results: points, trials, runs, and what each point came to."""

import contextlib
import logging
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from groundup.config import save_yaml
from groundup.data.shards import check_vocabulary, read_index
from groundup.errors import ConfigError, DataError
from groundup.experiments import ablation
from groundup.experiments.points import check_packages, known_points, propose
from groundup.experiments.runner import Command, Runner, make_slots, train_command
from groundup.experiments.spec import SweepConfig, base_config
from groundup.experiments.sweep_folder import SweepFolder
from groundup.experiments.trials import (
    LEARNING_RATE,
    Point,
    Status,
    Trial,
    TrialRecord,
    make_trial,
    summarize,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SweepOutcome:
    """Where a sweep stands when it returns."""

    records: dict[str, TrialRecord]
    """How each trial ended, by name."""
    stopped_by: signal.Signals | None = None


@dataclass(frozen=True)
class Outlook:
    """What a sweep would do if it were run now."""

    trials: list[Trial]
    """All that are known: a search proposes others later."""
    left: list[Trial]
    """Those of them that would run."""
    num_to_propose: int = 0
    """How many trials a search still has to propose."""


def run_sweep(
    spec: SweepConfig,
    path: Path,
    *,
    points: Sequence[Point] | None = None,
    jobs: int | None = None,
    command: Command = train_command,
) -> SweepOutcome:
    """Run what has not been run yet and say what all of it came to.

    The same call goes on after a stop or a kill: trials that ended are kept, one that was under
    way is resumed, and those that failed are tried again.

    points: a part of the sweep instead of all of it.
    jobs: trials at once; one on each CUDA device, or one on a CPU if not given.
    """
    folder = SweepFolder(path)
    # Another command may do without data.
    outlook = look_ahead(spec, path, points, needs_data=command is train_command)
    with folder.claim():
        save_yaml(folder.spec_file, spec)
        is_search = points is None and spec.is_search
        found = _search(spec, folder) if is_search else iter(outlook.trials)
        runner = Runner(folder, spec, make_slots(base_config(spec), jobs), command)
        stopped_by = runner.run(_unended(folder, found))
        return SweepOutcome(folder.records(), stopped_by)


def run_ablation(
    spec: SweepConfig, path: Path, *, jobs: int | None = None, command: Command = train_command
) -> SweepOutcome:
    """Find each variant's best learning rate with the first seed, then repeat it with others."""
    first = spec.model_copy(update={"seeds": spec.seeds[:1]})
    outcome = run_sweep(first, path, jobs=jobs, command=command)
    if outcome.stopped_by is not None:
        return outcome
    tried = ablation.read_tried(spec, outcome.records.values())
    points = [
        Point({LEARNING_RATE: known.best}, name)
        for name, known in tried.items()
        if known.best is not None
    ]
    return run_sweep(spec, path, points=points, jobs=jobs, command=command)


def look_ahead(
    spec: SweepConfig,
    path: Path,
    points: Sequence[Point] | None = None,
    *,
    needs_data: bool = True,
) -> Outlook:
    """Check what `run_sweep` would run, as far as it is known, and list it; write nothing."""
    check_packages(spec.sampler)
    folder, num_to_propose = SweepFolder(path), 0
    is_search = points is None and spec.is_search
    trials = [] if is_search else plan_trials(spec, path, points)
    folder.check(spec, trials)
    if is_search:
        proposed = folder.proposals()
        for point in proposed:
            # One that cannot be built has no trials; the sweep leaves it out too.
            with contextlib.suppress(ConfigError):
                found = plan_trials(spec, path, [point])
                folder.check(spec, found)
                trials += found
        num_to_propose = max(0, (spec.num_trials or 0) - len(proposed)) * len(spec.seeds)
    trials = list({one.name: one for one in trials}.values())
    states = folder.states(trials)
    left = [trial for trial in trials if states[trial.name] in ("begun", "to run")]
    for trial in left if needs_data else ():
        _check_data(trial, is_begun=states[trial.name] == "begun")
    return Outlook(trials, left, num_to_propose)


def plan_trials(
    spec: SweepConfig, path: Path, points: Sequence[Point] | None = None
) -> list[Trial]:
    """The different trials of some points, or of all that are known before the sweep begins."""
    if points is None:
        points = [] if spec.is_search else known_points(spec)
    runs = SweepFolder(path).runs
    trials = [make_trial(spec, point, seed, runs) for point in points for seed in spec.seeds]
    return list({trial.name: trial for trial in trials}.values())


def _search(spec: SweepConfig, folder: SweepFolder) -> Iterator[Trial]:
    """The trials of every point that was proposed, then of new ones until there are num_trials."""
    assert spec.num_trials is not None
    points, names = folder.proposals(), list[str | None]()
    for number in range(max(len(points), spec.num_trials)):
        if number == len(points):
            points.append(propose(spec, _history(spec, folder, points, names)))
            folder.add_proposal(points[-1])
        try:
            trials = plan_trials(spec, folder.path, points[number : number + 1])
            folder.check(spec, trials)
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


def _check_data(trial: Trial, *, is_begun: bool) -> None:
    """Raise for data that are missing, or have ids that the model does not know."""
    config = trial.config
    try:
        indexes = [read_index(shards) for shards in config.data.folders]
        # A run that has begun carries its own copy.
        if not is_begun and not config.data.tokenizer.is_file():
            raise DataError(
                f"tokenizer {config.data.tokenizer} does not exist: name that of the shards"
            )
        # Conversations take the place of the shards.
        for index in indexes if not config.tuning.chats else ():
            check_vocabulary(index, config.model.vocab_size)
    except (ConfigError, DataError) as error:
        raise type(error)(f"trial {trial.name}: {error}") from error
