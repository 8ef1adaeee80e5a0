"""Points that Optuna proposes from what the finished ones gave; its journal is in the sweep.

A proposal that a kill interrupted is still open in the journal and is tried before any new one.
"""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundup.errors import ConfigError
from groundup.experiments.proposals import (
    NUM_RANDOM,
    VARIANT,
    find_distributions,
    import_packages,
    make_proposer,
    without_experimental_warnings,
)
from groundup.experiments.results.statistics import confidence_interval
from groundup.experiments.spec import SweepConfig
from groundup.experiments.trials import Point, TrialRecord
from groundup.files import read_json_lines, write_bytes_atomic

if TYPE_CHECKING:
    import optuna

JOURNAL_NAME = "optuna.jsonl"
_AGAIN = "again"

_log = logging.getLogger(__name__)


class OptunaSampler:
    """A search over the variants, the grid's choices and the ranges."""

    def __init__(self, spec: SweepConfig, folder: Path) -> None:
        optuna = import_packages(spec.sampler)
        self._spec = spec
        self._states = optuna.trial.TrialState
        self._distributions = find_distributions(spec)
        self._journal = folder / JOURNAL_NAME
        _mend_journal(self._journal)
        with without_experimental_warnings():
            backend = optuna.storages.journal.JournalFileBackend(str(self._journal))
            storage = optuna.storages.JournalStorage(backend)
            self._study = optuna.create_study(
                study_name=spec.name,
                storage=storage,
                load_if_exists=True,
                sampler=make_proposer(spec, 0),
            )
        self._numbers: dict[int, int] = {}
        self._points: list[Point] = []
        self._check_journal()

    def points(self) -> Iterator[Point]:
        """Those of the journal, open or not, then new ones until there were num_trials in all."""
        assert self._spec.num_trials is not None
        if self._spec.sampler in ("tpe", "gp") and self._spec.num_trials <= NUM_RANDOM:
            _log.info(
                "the first %d points of sampler %s are random: with num_trials %d it learns "
                "nothing yet",
                NUM_RANDOM,
                self._spec.sampler,
                self._spec.num_trials,
            )
        num_points = 0
        for frozen in self._study.get_trials(deepcopy=False):
            if _AGAIN in frozen.user_attrs:
                continue
            if frozen.params.keys() != self._distributions.keys():
                # A kill between the proposal and its values left nothing to try.
                if not frozen.state.is_finished():
                    self._study.tell(frozen.number, state=self._states.FAIL)
                continue
            num_points += 1
            yield self._remember(frozen.number, frozen.params)
        for _ in range(self._spec.num_trials - num_points):
            self._study.sampler = make_proposer(self._spec, len(self._study.get_trials(False)))
            trial = self._study.ask(self._distributions)
            yield self._remember(trial.number, trial.params)

    def tell(self, point: Point, records: Sequence[TrialRecord]) -> None:
        """The mean over the seeds; a point that diverged or was pruned ranks below all others."""
        states = self._states
        number = self._numbers[id(point)]
        trials = self._study.get_trials(deepcopy=False)
        losses = [record.ranking_loss for record in records]
        interval = confidence_interval([loss for loss in losses if loss is not None])
        is_sound = interval is not None and all(one.status == "finished" for one in records)
        mean = interval.mean if interval is not None and is_sound else None
        if trials[number].state.is_finished():
            self._tell_again(trials[number], mean)
        elif any(record.status == "failed" for record in records):
            self._study.tell(number, state=states.FAIL)
        elif mean is not None:
            self._study.tell(number, mean)
        else:
            known = [one.value for one in trials if one.state == states.COMPLETE]
            if self._spec.sampler in ("gp", "cmaes") and known:
                # These do not hear of pruned points, and would go on proposing their neighbours.
                self._study.tell(number, max(known))
            else:
                self._study.tell(number, state=states.PRUNED)

    def _tell_again(self, frozen: "optuna.trial.FrozenTrial", mean: float | None) -> None:
        """What failed is closed for ever: where it was tried again, a second entry tells of it."""
        from optuna.trial import create_trial

        told = [one.user_attrs.get(_AGAIN) for one in self._study.get_trials(deepcopy=False)]
        if frozen.state == self._states.FAIL and mean is not None and frozen.number not in told:
            again = create_trial(
                params=frozen.params,
                distributions=frozen.distributions,
                value=mean,
                user_attrs={_AGAIN: frozen.number},
            )
            self._study.add_trial(again)

    def _remember(self, number: int, values: dict[str, Any]) -> Point:
        settings = {name: values[name] for name in self._distributions if name != VARIANT}
        point = Point(settings, values.get(VARIANT))
        self._points.append(point)
        self._numbers[id(point)] = number
        return point

    def _check_journal(self) -> None:
        """What was searched cannot change under a search, for its points would no longer compare.

        Of the samplers tpe alone takes every range by itself, and learns from another one too.
        """
        for frozen in self._study.get_trials(deepcopy=False):
            for name, before in frozen.distributions.items():
                now = self._distributions.get(name, before)
                is_range = name in self._spec.ranges
                if now != before and not (is_range and self._spec.sampler == "tpe"):
                    raise ConfigError(
                        f"the search in {self._journal} has tried {name} from {before}, not from "
                        f"{now}: put back what {name} was, or give the sweep another name"
                    )


def _mend_journal(journal: Path) -> None:
    """Take away what a kill left: a lock, for the sweep alone writes here, and half a line."""
    journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)
    if not journal.exists():
        return
    for _ in read_json_lines(journal):
        pass  # A damaged line is named.
    written = journal.read_bytes()
    whole = written[: written.rfind(b"\n") + 1]
    if whole != written:
        write_bytes_atomic(journal, whole)
