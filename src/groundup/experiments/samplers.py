"""Which points of a sweep are tried: all of a grid, random ones, or those that a search proposes.

A proposal follows from the sweep's seed, the points proposed before it and how these ended, and
from nothing else: after a kill the same points come.
"""

import importlib
import itertools
import logging
import math
import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from groundup.errors import ConfigError, MissingExtraError
from groundup.experiments.spec import RangeConfig, SweepConfig, takes_whole_numbers
from groundup.experiments.trials import Point

NUM_RANDOM = 10
"""Points of tpe and gp before there is something to learn from."""

_MAX_GRID_POINTS = 10_000
_VARIANT = "variant"
_PACKAGES = {"tpe": ["optuna"], "gp": ["optuna", "scipy"], "cmaes": ["cmaes"], "qmc": ["scipy"]}
# Nearly all first samples lie within the ranges: their ends are three deviations from the middle.
_FIRST_DEVIATION = 1 / 6

_History = list[tuple[list[float], float | None]]
"""Points as fractions of their axes, with their losses; None while they are under way."""


@dataclass(frozen=True)
class Ending:
    """How a point ended: with a loss, without one if it diverged or was pruned."""

    loss: float | None = None


@dataclass(frozen=True)
class Axis:
    """Something that varies, as fractions from 0 to 1: a list of choices, or a range."""

    choices: Sequence[Any] = ()
    range: RangeConfig | None = None
    takes_whole_numbers: bool = False

    def value_at(self, fraction: float) -> Any:
        """The value at a fraction of the way from the first to the last."""
        if self.range is None:
            return self.choices[min(int(fraction * len(self.choices)), len(self.choices) - 1)]
        low, high = self._ends(self.range)
        if fraction in (0.0, 1.0) or low == high:
            return high if fraction else low
        value = low + fraction * (high - low)
        if self.range.scale == "log":
            value = low ** (1 - fraction) * high**fraction
        # Values are parts of names, so they have few digits: more where the ends share the first.
        digits = 4 + int(math.log10(max(abs(low), abs(high)) / (high - low)))
        value = round(value) if self.takes_whole_numbers else float(f"{value:.{digits}g}")
        return min(max(value, low), high)

    def fraction_of(self, value: Any) -> float | None:
        """Where a value lies; None if it lies outside."""
        if self.range is None:
            known = value in self.choices
            return (self.choices.index(value) + 0.5) / len(self.choices) if known else None
        low, high = self._ends(self.range)
        if not isinstance(value, int | float) or not low <= value <= high:
            return None
        if self.range.scale == "log":
            low, value, high = np.log([low, value, high]).tolist()
        return (value - low) / (high - low) if high > low else 0.5

    def _ends(self, range_: RangeConfig) -> tuple[float, float]:
        low, high = range_.low, range_.high
        return (math.ceil(low), math.floor(high)) if self.takes_whole_numbers else (low, high)


def known_points(spec: SweepConfig) -> list[Point]:
    """The points of a sweep that is no search."""
    if spec.sampler == "grid":
        return grid_points(spec)
    assert spec.num_trials is not None
    # Each depends on its number alone, so more trials keep the first ones.
    return [_sample(spec, number) for number in range(spec.num_trials)]


def grid_points(spec: SweepConfig) -> list[Point]:
    """Every combination of variants, grid values and points of ranges."""
    values = dict(spec.grid)
    for name, axis in _range_axes(spec).items():
        num = spec.ranges[name].num
        values[name] = [axis.value_at(n / (num - 1) if num > 1 else 0.0) for n in range(num)]
        values[name] = list(dict.fromkeys(values[name]))
    num_points = max(1, len(spec.variants))
    for listed in values.values():
        num_points *= len(listed)
    if num_points > _MAX_GRID_POINTS:
        raise ConfigError(
            f"the grid of {spec.name} has {num_points:,} points, more than {_MAX_GRID_POINTS:,}: "
            f"give fewer values, or sample some with sampler random"
        )
    return [
        Point(dict(zip(values, chosen, strict=True)), variant)
        for variant in spec.variants or [None]
        for chosen in itertools.product(*values.values())
    ]


def check_packages(sampler: str) -> None:
    """Raise for the first package that a sampler needs and that is not installed."""
    for package in _PACKAGES.get(sampler, ()):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise MissingExtraError(f"sampler {sampler} (package {package})", "sweep") from error


def propose(spec: SweepConfig, points: Sequence[Point], endings: Sequence[Ending | None]) -> Point:
    """The next point of a search.

    spec: what varies, and the sampler.
    points: those proposed so far, in order.
    endings: how each of them ended; None while it is under way.
    """
    axes = _axes(spec)
    history = _make_history(axes, points, endings)
    seed = random.Random(f"{spec.sampler_seed}/{len(points)}").getrandbits(32)
    if spec.sampler == "qmc":
        # All proposals are points of one sequence, which the sweep's own seed scrambles.
        sobol = importlib.import_module("scipy.stats.qmc").Sobol
        sequence = sobol(len(axes), seed=spec.sampler_seed)
        if points:
            sequence.fast_forward(len(points))
        fractions = sequence.random(1)[0].tolist()
    elif spec.sampler == "cmaes":
        fractions = _ask_cmaes(len(axes), history, seed)
    else:
        fractions = _ask_optuna(spec.sampler, list(axes.values()), history, seed)
    values = {
        name: axis.value_at(at) for (name, axis), at in zip(axes.items(), fractions, strict=True)
    }
    return Point(values, values.pop(_VARIANT, None))


def _range_axes(spec: SweepConfig) -> dict[str, Axis]:
    return {
        name: Axis(range=range_, takes_whole_numbers=takes_whole_numbers(name))
        for name, range_ in spec.ranges.items()
    }


def _axes(spec: SweepConfig) -> dict[str, Axis]:
    """Everything that varies, by its name: the variant, the choices of the grid, the ranges."""
    variants = {_VARIANT: Axis(list(spec.variants))} if spec.variants else {}
    return {**variants, **{n: Axis(c) for n, c in spec.grid.items()}, **_range_axes(spec)}


def _sample(spec: SweepConfig, number: int) -> Point:
    generator = random.Random(f"{spec.sampler_seed}/{number}")
    variant = generator.choice(list(spec.variants)) if spec.variants else None
    settings = {name: generator.choice(values) for name, values in spec.grid.items()}
    for name, axis in _range_axes(spec).items():
        settings[name] = axis.value_at(generator.random())
    return Point(settings, variant)


def _make_history(
    axes: dict[str, Axis], points: Sequence[Point], endings: Sequence[Ending | None]
) -> _History:
    """The points that lie on the axes as they are now; what has no loss counts as the worst."""
    losses = [end.loss for end in endings if end is not None and end.loss is not None]
    history: _History = []
    for point, ending in zip(points, endings, strict=True):
        values = {_VARIANT: point.variant, **point.settings}
        at = [axis.fraction_of(values[n]) if n in values else None for n, axis in axes.items()]
        fractions = [fraction for fraction in at if fraction is not None]
        if len(fractions) < len(axes):
            continue
        if ending is None:
            history.append((fractions, None))
        elif losses:
            history.append((fractions, max(losses) if ending.loss is None else ending.loss))
    return history


def _ask_cmaes(dimensions: int, history: _History, seed: int) -> list[float]:
    """A sample of a Gaussian that moved and stretched to the better half of each generation.

    Optuna's own sampler keeps its state as a pickle, and to go on with somebody's sweep must not
    run their code: here it is told the history anew.
    """
    gaussian = importlib.import_module("cmaes").CMA(
        mean=np.full(dimensions, 0.5),
        sigma=_FIRST_DEVIATION,
        bounds=np.tile([0.0, 1.0], (dimensions, 1)),
        n_max_resampling=10 * dimensions,
        seed=seed,
    )
    ended = [(np.array(fractions), loss) for fractions, loss in history if loss is not None]
    size = gaussian.population_size
    for begin in range(0, len(ended) - size + 1, size):
        gaussian.tell(ended[begin : begin + size])
    sampled: list[float] = gaussian.ask().tolist()
    return sampled


def _ask_optuna(sampler: str, axes: list[Axis], history: _History, seed: int) -> list[float]:
    """A proposal of an Optuna study in memory that has the history for its trials."""
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution
    from optuna.trial import TrialState, create_trial

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # It advises a package that saves a moment for each proposal.
    logging.getLogger("optuna._gp.batched_lbfgsb").setLevel(logging.ERROR)
    distributions: dict[str, optuna.distributions.BaseDistribution] = {
        str(number): CategoricalDistribution(range(len(axis.choices)))
        if axis.range is None
        else FloatDistribution(0.0, 1.0)
        for number, axis in enumerate(axes)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if sampler == "gp":
            proposer: optuna.samplers.BaseSampler = optuna.samplers.GPSampler(
                seed=seed, n_startup_trials=NUM_RANDOM, warn_independent_sampling=False
            )
        else:
            # To lie that points under way will be bad keeps jobs at the same time apart.
            proposer = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=NUM_RANDOM, constant_liar=True
            )
    study = optuna.create_study(sampler=proposer)
    for fractions, loss in history:
        values = {
            str(n): int(at * len(axis.choices)) if axis.range is None else at
            for n, (axis, at) in enumerate(zip(axes, fractions, strict=True))
        }
        state = TrialState.RUNNING if loss is None else TrialState.COMPLETE
        study.add_trial(
            create_trial(state=state, params=values, distributions=distributions, value=loss)
        )
    asked = study.ask(distributions).params
    return [
        (asked[str(n)] + 0.5) / len(axis.choices) if axis.range is None else asked[str(n)]
        for n, axis in enumerate(axes)
    ]
