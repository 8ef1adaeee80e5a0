"""Points that Optuna proposes from what the finished ones gave; its journal is in the sweep.

A proposal that a kill interrupted is still open in the journal and is tried before any new one. A
new sampler is made for every proposal, seeded with the sweep's seed and the number of the proposal:
what it proposes follows from the journal alone, whether the sweep was interrupted or not.
"""

import contextlib
import importlib
import logging
import random
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundup.errors import ConfigError, GroundupError, MissingExtraError
from groundup.experiments.results.statistics import confidence_interval
from groundup.experiments.spec import SweepConfig, takes_whole_numbers
from groundup.experiments.trials import Point, Trial, TrialRecord, make_trial
from groundup.files import read_json_lines, write_bytes_atomic

if TYPE_CHECKING:
    import optuna

JOURNAL_NAME = "optuna.jsonl"
_AGAIN = "again"
_VARIANT = "variant"
_NUM_RANDOM = 10  # Points of tpe and gp before there is something to learn from.

# The optional packages of Optuna's samplers; torch is always there.
_PACKAGES = {"gp": ("scipy",), "cmaes": ("cmaes",), "qmc": ("scipy",)}

_log = logging.getLogger(__name__)


def import_packages(sampler: str) -> Any:
    """Optuna, once all that the sampler needs is there; else an error that names what is not."""
    for package in ("optuna", *_PACKAGES.get(sampler, ())):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise MissingExtraError(f"sampler {sampler} (package {package})", "sweep") from error
    optuna = importlib.import_module("optuna")
    importlib.import_module("optuna.storages.journal")
    logging.getLogger("optuna").setLevel(logging.WARNING)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # It advises a package that saves a moment for each proposal.
    logging.getLogger("optuna._gp.batched_lbfgsb").setLevel(logging.ERROR)
    return optuna


class OptunaSampler:
    """A search over the variants, the grid's choices and the ranges."""

    def __init__(self, spec: SweepConfig, folder: Path) -> None:
        optuna = import_packages(spec.sampler)
        self._spec = spec
        self._states = optuna.trial.TrialState
        self._distributions = _find_distributions(spec)
        self._journal = folder / JOURNAL_NAME
        _repair_journal(self._journal)
        with _without_experimental_warnings():
            backend = optuna.storages.journal.JournalFileBackend(str(self._journal))
            storage = optuna.storages.JournalStorage(backend)
            self._study = optuna.create_study(
                study_name=spec.name,
                storage=storage,
                load_if_exists=True,
                sampler=_make_proposer(spec, 0),
            )
        self._asked: list[tuple[int, Point]] = []
        self._check_journal()

    def points(self) -> Iterator[Point]:
        """Those of the journal, open or not, then new ones until there were num_trials in all."""
        assert self._spec.num_trials is not None
        if self._spec.sampler in ("tpe", "gp") and self._spec.num_trials <= _NUM_RANDOM:
            _log.info(
                "the first %d points of sampler %s are random: with num_trials %d it learns "
                "nothing yet",
                _NUM_RANDOM,
                self._spec.sampler,
                self._spec.num_trials,
            )
        num_points = 0
        for frozen in self._proposed():
            num_points += 1
            yield self._remember(frozen.number, frozen.params)
        for _ in range(self._spec.num_trials - num_points):
            self._study.sampler = _make_proposer(self._spec, len(self._study.get_trials(False)))
            trial = self._study.ask(self._distributions)
            yield self._remember(trial.number, trial.params)

    def proposed_points(self) -> list[Point]:
        """The points of the journal."""
        return [self._remember(one.number, one.params) for one in self._proposed()]

    def _proposed(self) -> "Iterator[optuna.trial.FrozenTrial]":
        for frozen in self._study.get_trials(deepcopy=False):
            if _AGAIN in frozen.user_attrs:
                continue
            if frozen.params.keys() == self._distributions.keys():
                yield frozen
            elif not frozen.state.is_finished():
                # A kill between the proposal and its values left nothing to try.
                self._study.tell(frozen.number, state=self._states.FAIL)

    def tell(self, point: Point, records: Sequence[TrialRecord]) -> None:
        """The mean over the seeds; a point that diverged or was pruned ranks below all others."""
        states = self._states
        number = next(number for number, asked in self._asked if asked is point)
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
        settings = {name: values[name] for name in self._distributions if name != _VARIANT}
        point = Point(settings, values.get(_VARIANT))
        self._asked.append((number, point))
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


def search_trials(spec: SweepConfig, path: Path, runs_folder: Path) -> tuple[list[Trial], int]:
    """The trials of the points that were proposed so far, and how many points are still to come.

    A proposal that cannot be built has no trials; the sweep leaves it out too.
    """
    points = proposed_points(spec, path)
    trials: dict[str, Trial] = {}
    for point in points:
        for seed in spec.seeds:
            try:
                trial = make_trial(spec, point, seed, runs_folder)
            except ConfigError:
                break
            trials[trial.name] = trial
    assert spec.num_trials is not None
    return list(trials.values()), max(0, spec.num_trials - len(points))


def proposed_points(spec: SweepConfig, path: Path) -> list[Point]:
    """All points of the journal; an error, as the sweep has it, where it is another search's.

    It is read from a copy, for reading must write nothing.
    """
    journal = path / JOURNAL_NAME
    if not journal.exists():
        return []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / JOURNAL_NAME
        shutil.copyfile(journal, copy)
        try:
            return OptunaSampler(spec, copy.parent).proposed_points()
        except GroundupError as error:
            raise type(error)(str(error).replace(str(copy), str(journal))) from error


def _find_distributions(spec: SweepConfig) -> "dict[str, optuna.distributions.BaseDistribution]":
    """Everything that varies, by its name: the variant, the choices of the grid, the ranges."""
    import optuna.distributions as kinds

    found: dict[str, kinds.BaseDistribution] = {}
    if spec.variants:
        found[_VARIANT] = kinds.CategoricalDistribution(list(spec.variants))
    for name, choices in spec.grid.items():
        found[name] = kinds.CategoricalDistribution(choices)
    for name, range_ in spec.ranges.items():
        is_log = range_.scale == "log"
        if takes_whole_numbers(name):
            low, high = round(range_.low), round(range_.high)
            found[name] = kinds.IntDistribution(low, high, log=is_log)
        else:
            found[name] = kinds.FloatDistribution(range_.low, range_.high, log=is_log)
    return found


def _make_proposer(spec: SweepConfig, number: int) -> "optuna.samplers.BaseSampler":
    """The sampler that the sweep names, for the proposal of this number."""
    from optuna import samplers

    seed = random.Random(f"{spec.sampler_seed}/{number}").getrandbits(32)
    with _without_experimental_warnings():
        if spec.sampler == "cmaes":
            from groundup.experiments.cma_es import CovarianceSampler

            return CovarianceSampler(_find_distributions(spec), seed)
        if spec.sampler == "gp":
            return samplers.GPSampler(
                seed=seed, n_startup_trials=_NUM_RANDOM, warn_independent_sampling=False
            )
        if spec.sampler == "qmc":
            # All proposals are points of one sequence, which the sweep's own seed scrambles.
            return samplers.QMCSampler(
                scramble=True,
                seed=spec.sampler_seed,
                independent_sampler=samplers.RandomSampler(seed=seed),
                warn_independent_sampling=False,
            )
        # To lie that points under way will be bad keeps jobs at the same time apart.
        return samplers.TPESampler(seed=seed, n_startup_trials=_NUM_RANDOM, constant_liar=True)


@contextlib.contextmanager
def _without_experimental_warnings() -> Iterator[None]:
    """What Optuna may still change is no news for whoever runs a sweep."""
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield


def _repair_journal(journal: Path) -> None:
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
