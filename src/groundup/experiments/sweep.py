"""A sweep from its settings to its results: points, trials, runs, and what each point came to."""

import contextlib
import logging
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groundup.data.shards import read_index
from groundup.errors import ConfigError, DataError
from groundup.experiments.optuna_search import import_packages, search_trials
from groundup.experiments.results.statistics import Interval, confidence_interval
from groundup.experiments.runner import Command, Runner, train_command
from groundup.experiments.samplers import FixedPoints, Sampler, grid_points, make_sampler
from groundup.experiments.slots import make_slots, num_devices
from groundup.experiments.spec import SweepConfig, base_config
from groundup.experiments.sweep_folder import SweepFolder
from groundup.experiments.trials import Point, Trial, TrialRecord, make_trial
from groundup.training.execution import resolve_device

_SHARDS, _TOKENIZER = "data.shards", "data.tokenizer"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PointResult:
    """What the repetitions of one point came to."""

    point: str
    variant: str | None
    settings: dict[str, Any]
    records: tuple[TrialRecord, ...]
    loss: Interval | None
    """Of the finished trials' lowest validation loss, or training loss where nothing else is."""

    @property
    def is_sound(self) -> bool:
        """Did every repetition come to its end?"""
        return self.loss is not None and all(r.status == "finished" for r in self.records)


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
    way is resumed, and those that failed are tried again. `points` and `seeds` run a part of the
    sweep instead of all of it.
    """
    folder = SweepFolder(path)
    num_to_propose = 0
    if points is None:
        trials, num_to_propose = _find_trials(spec, folder)
    else:
        trials = check_points(spec, points, path)
        trials = [trial for trial in trials if trial.config.seed in (seeds or spec.seeds)]
        folder.check(spec)
    if command is train_command:
        # Another command may do without data.
        _check_data(spec, folder, trials, num_to_propose)
        _check_devices(spec, folder.left(trials), num_to_propose)
    with folder.claim():
        folder.begin(spec)
        sampler = make_sampler(spec, path) if points is None else FixedPoints(points)
        slots = make_slots(base_config(spec), jobs)
        if spec.minutes is not None and len(slots) > num_devices(slots):
            _log.warning(
                "%d trials at once share %d device%s, so that what each comes to in %g minutes "
                "depends on the others: fewer --jobs measure it alone",
                len(slots),
                num_devices(slots),
                "" if num_devices(slots) == 1 else "s",
                spec.minutes,
            )
        runner = Runner(folder, spec, slots, command)
        sweep = _Sweep(spec, folder, sampler, list(seeds or spec.seeds))
        stopped_by = runner.run(sweep.trials(), sweep.note)
        records = folder.records()
        return SweepOutcome(path, summarize(records.values()), records, stopped_by)


def look_ahead(spec: SweepConfig, path: Path) -> Outlook:
    """Make the checks that `run_sweep` would make and find what it would run; write nothing."""
    folder = SweepFolder(path)
    trials, num_to_propose = _find_trials(spec, folder)
    _check_data(spec, folder, trials, num_to_propose)
    left = folder.left(trials)
    if num_to_propose:
        left += num_to_propose * [make_trial(spec, Point({}), n, folder.runs) for n in spec.seeds]
    return Outlook(trials, left, num_to_propose)


def plan_trials(spec: SweepConfig, path: Path) -> list[Trial]:
    """Every trial that is known before the sweep begins, each checked."""
    if spec.is_search:
        import_packages(spec.sampler)
        return []
    return check_points(spec, list(make_sampler(spec, path).points()), path)


def check_points(spec: SweepConfig, points: Sequence[Point], path: Path) -> list[Trial]:
    """The trials of some points; a mistake in one is found before any of them runs."""
    runs = SweepFolder(path).runs
    trials = [make_trial(spec, point, seed, runs) for point in points for seed in spec.seeds]
    return list({trial.name: trial for trial in trials}.values())


def summarize(records: Iterable[TrialRecord]) -> list[PointResult]:
    """Group trials by everything but the seed and rank the groups."""
    groups: dict[str, list[TrialRecord]] = {}
    for record in records:
        groups.setdefault(record.point, []).append(record)
    results = []
    for point, members in groups.items():
        members.sort(key=lambda record: record.seed)
        first = members[0]
        finished = [record.ranking_loss for record in members if record.status == "finished"]
        loss = confidence_interval([value for value in finished if value is not None])
        results.append(PointResult(point, first.variant, first.settings, tuple(members), loss))
    return sorted(results, key=_rank)


class _Sweep:
    """Turns points into trials that still have to run, and tells the sampler when one is done."""

    def __init__(
        self,
        spec: SweepConfig,
        folder: SweepFolder,
        sampler: Sampler,
        seeds: list[int],
    ) -> None:
        self._spec = spec
        self._folder = folder
        self._sampler = sampler
        self._seeds = seeds
        self._records = folder.records()
        self._asked: set[str] = set()
        self._open: list[tuple[Point, list[str]]] = []

    def trials(self) -> Iterator[Trial]:
        for point in self._sampler.points():
            runs = self._folder.runs
            try:
                trials = [make_trial(self._spec, point, seed, runs) for seed in self._seeds]
            except ConfigError as error:
                # Only a proposal can be impossible: points known beforehand were checked.
                _log.warning("a proposal is left out: %s", error)
                self._sampler.tell(point, [])
                continue
            self._open.append((point, [trial.name for trial in trials]))
            for trial in trials:
                if trial.name in self._asked:
                    continue
                self._asked.add(trial.name)
                record = self._records.get(trial.name)
                if record is None or record.status == "failed":
                    self._records.pop(trial.name, None)
                    yield trial
            self._tell_complete()

    def note(self, trial: Trial, record: TrialRecord) -> None:
        self._records[trial.name] = record
        self._tell_complete()

    def _tell_complete(self) -> None:
        for entry in list(self._open):
            point, names = entry
            if all(name in self._records for name in names):
                self._sampler.tell(point, [self._records[name] for name in names])
                self._open.remove(entry)


def _find_trials(spec: SweepConfig, folder: SweepFolder) -> tuple[list[Trial], int]:
    """The trials that are known, and how many points a search still has to propose."""
    trials = plan_trials(spec, folder.path)
    folder.check(spec)
    return search_trials(spec, folder.path, folder.runs) if spec.is_search else (trials, 0)


def _check_data(
    spec: SweepConfig, folder: SweepFolder, trials: list[Trial], num_to_propose: int
) -> None:
    """Raise for the first trial still to run whose data are missing; what has ended needs none."""
    left = folder.left(trials)
    if num_to_propose:
        left += _trials_by_data(spec, folder)
    states, known = folder.states(left), set[tuple[str, Path]]()
    for trial in left:
        data = trial.config.data
        needed = [(_SHARDS, data.shards)]
        if states[trial.name] == "to run":
            # One that has begun carries its own copy.
            needed.append((_TOKENIZER, data.tokenizer))
        for setting, path in needed:
            if (setting, path) not in known:
                _check_path(setting, path, f"trial {trial.name}")
                known.add((setting, path))


def _trials_by_data(spec: SweepConfig, folder: SweepFolder) -> Iterator[Trial]:
    """Trials with all data that a search may propose; whatever else it tries is the base's."""
    chosen = {name: spec.grid[name] for name in (_SHARDS, _TOKENIZER) if name in spec.grid}
    for point in grid_points(spec.model_copy(update={"grid": chosen, "ranges": {}})):
        # A variant may need what is left out here.
        with contextlib.suppress(ConfigError):
            yield make_trial(spec, point, spec.seeds[0], folder.runs)


def _check_path(setting: str, path: Path, whose: str) -> None:
    if setting == _SHARDS:
        try:
            read_index(path)
        except DataError as error:
            raise DataError(f"{setting} of {whose}: {error}") from error
    elif not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise DataError(
            f"{setting} of {whose}: {path} {what}; name the tokenizer of the shards, or make one "
            f"with groundup tokenizer train"
        )


def _check_devices(spec: SweepConfig, left: list[Trial], num_to_propose: int) -> None:
    """Raise for a device or precision that this machine lacks, before a trial fails on it."""
    configs = [trial.config for trial in left]
    if num_to_propose:
        configs.append(base_config(spec))
    for config in {(one.device, one.precision): one for one in configs}.values():
        resolve_device(config)


def _rank(result: PointResult) -> tuple[bool, bool, float]:
    return not result.is_sound, result.loss is None, result.loss.mean if result.loss else 0.0
