"""Run sweeps, and list their trials in advance."""

import contextlib
import importlib.util
import logging
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from groundup.config import save_yaml
from groundup.data.shards import check_vocabulary, read_index
from groundup.errors import ConfigError, DataError, MissingExtraError
from groundup.experiments.points import grid_points, propose
from groundup.experiments.runner import Command, Runner, make_slots, train_command
from groundup.experiments.spec import SweepConfig, base_config
from groundup.experiments.sweep_folder import SweepFolder, TrialState
from groundup.experiments.trials import (
    Point,
    Status,
    Trial,
    TrialRecord,
    make_trial,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SweepOutcome:
    """The state of a sweep when it returns."""

    records: dict[str, TrialRecord]
    """How each trial ended, by name."""
    stopped_by: signal.Signals | None = None


def run_sweep(
    spec: SweepConfig,
    path: Path,
    *,
    jobs: int | None = None,
    command: Command = train_command,
) -> SweepOutcome:
    """Run the trials that have not ended and return all results.

    The same call continues after a stop or a kill: trials that ended are kept, interrupted ones are
    resumed, and failed ones are retried. jobs: see `make_slots`.
    """
    folder = SweepFolder(path)
    # Custom commands may not need data.
    trials = look_ahead(spec, path, needs_data=command is train_command)
    with folder.claim():
        save_yaml(folder.spec_file, spec)
        found = _search(spec, folder) if spec.is_search else (trial for trial, _ in trials)
        runner = Runner(folder, spec, make_slots(base_config(spec), jobs), command)
        stopped_by = runner.run(_unended(folder, found))
        return SweepOutcome(folder.records(), stopped_by)


def look_ahead(
    spec: SweepConfig, path: Path, *, needs_data: bool = True
) -> list[tuple[Trial, TrialState]]:
    """Check the known trials of a sweep and list them with their states; writes nothing. A search
    proposes more."""
    if spec.is_search and importlib.util.find_spec("optuna") is None:
        raise MissingExtraError("a search", "sweep")
    folder = SweepFolder(path)
    trials = plan_trials(spec, path)
    folder.check(spec, trials)
    if spec.is_search:
        for point in folder.proposals():
            # The sweep skips points that cannot be built, too.
            with contextlib.suppress(ConfigError):
                found = plan_trials(spec, path, [point])
                folder.check(spec, found)
                trials += found
    trials = list({one.name: one for one in trials}.values())
    states = folder.states(trials)
    for trial in trials if needs_data else ():
        if states[trial.name] in ("begun", "to run"):
            _check_data(trial, is_begun=states[trial.name] == "begun")
    return [(trial, states[trial.name]) for trial in trials]


def plan_trials(
    spec: SweepConfig, path: Path, points: Sequence[Point] | None = None
) -> list[Trial]:
    """The distinct trials of some points, or of all points known in advance."""
    if points is None:
        points = [] if spec.is_search else grid_points(spec)
    runs = SweepFolder(path).runs
    trials = [make_trial(spec, point, seed, runs) for point in points for seed in spec.seeds]
    return list({trial.name: trial for trial in trials}.values())


def _search(spec: SweepConfig, folder: SweepFolder) -> Iterator[Trial]:
    """The trials of all proposed points, then of new ones up to num_trials."""
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
            _log.warning("skipping a proposal: %s", error)
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
    """The status and loss of each point; points that could not be built count as diverged."""
    by_point: dict[str, list[TrialRecord]] = {}
    for record in folder.records().values():
        # Failed trials are not evidence about their point.
        if record.status != "failed":
            by_point.setdefault(record.point, []).append(record)
    found: dict[str | None, tuple[Status, float | None]] = {None: ("diverged", None)}
    for name, ended in by_point.items():
        losses = [one.ranking_loss for one in ended if one.ranking_loss is not None]
        is_sound = losses and all(one.status == "finished" for one in ended)
        if len(ended) >= len(spec.seeds):
            found[name] = ("finished", fmean(losses)) if is_sound else ("diverged", None)
    return [
        (point, *found.get(name, (None, None))) for point, name in zip(points, names, strict=True)
    ]


def _unended(folder: SweepFolder, trials: Iterator[Trial]) -> Iterator[Trial]:
    """The trials that have not ended or have failed, each once."""
    records, asked = folder.records(), set[str]()
    for trial in trials:
        record = records.get(trial.name)
        if trial.name not in asked and (record is None or record.status == "failed"):
            asked.add(trial.name)
            yield trial


def _check_data(trial: Trial, *, is_begun: bool) -> None:
    """Raise an error for missing data, or ids outside the model's vocabulary."""
    config = trial.config
    try:
        indexes = [read_index(shards) for shards in config.data.folders]
        # A started run has its own copy.
        if not is_begun and not config.data.tokenizer.is_file():
            raise DataError(
                f"tokenizer {config.data.tokenizer} does not exist: give the tokenizer of the "
                f"shards"
            )
        # Conversations replace the shards.
        for index in indexes if not config.tuning.chats else ():
            check_vocabulary(index, config.model.vocab_size)
    except (ConfigError, DataError) as error:
        raise type(error)(f"trial {trial.name}: {error}") from error
