"""A sweep from its settings to its results: points, trials, runs, and what each point came to."""

import logging
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from groundup.errors import ConfigError
from groundup.experiments.devices import make_slots, num_devices
from groundup.experiments.proposals import import_packages
from groundup.experiments.results.statistics import Interval, confidence_interval
from groundup.experiments.runner import Command, Runner, train_command
from groundup.experiments.samplers import FixedPoints, Sampler, make_sampler
from groundup.experiments.spec import SweepConfig, base_config
from groundup.experiments.sweep_folder import SweepFolder
from groundup.experiments.trials import Point, Status, Trial, TrialRecord, make_trial

TrialState = Status | Literal["begun", "to run"]

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

    @property
    def best(self) -> PointResult | None:
        """The first sound one; none where texts differ, for then the losses do not compare."""
        if not self.has_one_text:
            return None
        return next((result for result in self.results if result.is_sound), None)

    @property
    def has_one_text(self) -> bool:
        """Did all points learn from the same shards?"""
        names = ("data.shards", "data.tokenizer")
        texts = {tuple(result.settings.get(name) for name in names) for result in self.results}
        return len(texts) <= 1


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
    if points is not None:
        check_points(spec, points, path)
    elif spec.is_search:
        import_packages(spec.sampler)
    else:
        plan_trials(spec, path)
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


def plan_trials(spec: SweepConfig, path: Path) -> list[Trial]:
    """Every trial that is known before the sweep begins, each checked."""
    if spec.is_search:
        return []
    return check_points(spec, list(make_sampler(spec, path).points()), path)


def check_points(spec: SweepConfig, points: Sequence[Point], path: Path) -> list[Trial]:
    """The trials of some points; a mistake in one is found before any of them runs."""
    runs = SweepFolder(path).runs
    trials = [make_trial(spec, point, seed, runs) for point in points for seed in spec.seeds]
    return list({trial.name: trial for trial in trials}.values())


def trial_states(path: Path, trials: Sequence[Trial]) -> dict[str, TrialState]:
    """How far each trial is, by its name, as the sweep's folder tells."""
    folder = SweepFolder(path)
    records = folder.records()
    states: dict[str, TrialState] = {}
    for trial in trials:
        record = records.get(trial.name)
        if record is not None and record.status != "failed":
            states[trial.name] = record.status
        else:
            has_begun = (folder.runs / trial.name / "config.yaml").exists()
            states[trial.name] = "begun" if has_begun else "to run"
    return states


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


def _rank(result: PointResult) -> tuple[bool, bool, float]:
    return not result.is_sound, result.loss is None, result.loss.mean if result.loss else 0.0
