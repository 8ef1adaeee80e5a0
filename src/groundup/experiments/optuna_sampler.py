"""Points that Optuna proposes from what the finished ones gave; its journal is in the sweep.

A proposal that a kill interrupted is still open in the journal and is tried before any new one.
"""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundup.errors import MissingExtraError
from groundup.experiments.results.statistics import confidence_interval
from groundup.experiments.spec import SweepConfig, takes_whole_numbers
from groundup.experiments.trials import Point, TrialRecord

if TYPE_CHECKING:
    import optuna

JOURNAL_NAME = "optuna.jsonl"
_VARIANT = "variant"


class OptunaSampler:
    """The tree-structured Parzen estimator over the grid's choices and the ranges."""

    def __init__(self, spec: SweepConfig, folder: Path) -> None:
        optuna = import_optuna()
        self._spec = spec
        self._states = optuna.trial.TrialState
        self._names = {*spec.grid, *spec.ranges, *([_VARIANT] if spec.variants else [])}
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        backend = optuna.storages.journal.JournalFileBackend(str(folder / JOURNAL_NAME))
        storage = optuna.storages.JournalStorage(backend)
        self._study = optuna.create_study(
            study_name=spec.name, storage=storage, load_if_exists=True
        )
        # A resumed study would otherwise draw its first random points once more.
        seed = spec.sampler_seed + len(self._study.trials)
        self._study.sampler = optuna.samplers.TPESampler(seed=seed)
        self._numbers: dict[int, int] = {}
        self._points: list[Point] = []

    def points(self) -> Iterator[Point]:
        """Those of the journal, open or not, then new ones until there were num_trials in all."""
        assert self._spec.num_trials is not None
        num_points = 0
        for frozen in self._study.get_trials(deepcopy=False):
            if frozen.params.keys() != self._names:
                # A kill between the proposal and its values left nothing to try.
                if not frozen.state.is_finished():
                    self._study.tell(frozen.number, state=self._states.FAIL)
                continue
            num_points += 1
            yield self._remember(frozen.number, dict(frozen.params))
        for _ in range(self._spec.num_trials - num_points):
            trial = self._study.ask()
            yield self._remember(trial.number, self._suggest(trial))

    def tell(self, point: Point, records: Sequence[TrialRecord]) -> None:
        """The mean over the seeds; a point that diverged or was pruned ranks below all others."""
        states = self._states
        number = self._numbers[id(point)]
        if self._study.get_trials(deepcopy=False)[number].state.is_finished():
            return
        losses = [record.ranking_loss for record in records]
        interval = confidence_interval([loss for loss in losses if loss is not None])
        if any(record.status == "failed" for record in records):
            self._study.tell(number, state=states.FAIL)
        elif interval is None or any(record.status != "finished" for record in records):
            self._study.tell(number, state=states.PRUNED)
        else:
            self._study.tell(number, interval.mean)

    def _suggest(self, trial: "optuna.Trial") -> dict[str, Any]:
        spec = self._spec
        values: dict[str, Any] = {}
        if spec.variants:
            values[_VARIANT] = trial.suggest_categorical(_VARIANT, list(spec.variants))
        for name, choices in spec.grid.items():
            values[name] = trial.suggest_categorical(name, choices)
        for name, range_ in spec.ranges.items():
            is_log = range_.scale == "log"
            if takes_whole_numbers(name):
                low, high = round(range_.low), round(range_.high)
                values[name] = trial.suggest_int(name, low, high, log=is_log)
            else:
                values[name] = trial.suggest_float(name, range_.low, range_.high, log=is_log)
        return values

    def _remember(self, number: int, values: dict[str, Any]) -> Point:
        point = Point(values, values.pop(_VARIANT, None))
        self._points.append(point)
        self._numbers[id(point)] = number
        return point


def import_optuna() -> Any:
    """Optuna, or an error that names the extra it comes with."""
    try:
        import optuna
        import optuna.storages.journal
    except ImportError as error:
        raise MissingExtraError("sampler tpe", "sweep") from error
    logging.getLogger("optuna").setLevel(logging.WARNING)
    return optuna
