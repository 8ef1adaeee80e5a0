"""CMA-ES: samples from a Gaussian that moves and stretches to the better half of each generation.

Its state is told anew from the finished trials for every proposal. Optuna's own sampler keeps it as
a pickle in the journal, and to go on with somebody's sweep must not run their code. Trials count by
their numbers, so many a generation; of jobs at once some were sampled a little before it.
"""

import importlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

# Nearly all first samples lie within the ranges: their ends are three deviations from the middle.
_FIRST_DEVIATION = 1 / 6


class CovarianceSampler(optuna.samplers.BaseSampler):
    """Proposals over ranges of numbers, all of them at once."""

    def __init__(self, distributions: Mapping[str, BaseDistribution], seed: int) -> None:
        self._axes = {
            name: distribution
            for name, distribution in distributions.items()
            if isinstance(distribution, FloatDistribution | IntDistribution)
            and not distribution.single()
        }
        self._seed = seed

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return dict(self._axes)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        dimensions = len(self._axes)
        gaussian = importlib.import_module("cmaes").CMA(
            mean=np.full(dimensions, 0.5),
            sigma=_FIRST_DEVIATION,
            bounds=np.tile([0.0, 1.0], (dimensions, 1)),
            n_max_resampling=10 * dimensions,
            seed=self._seed,
        )
        finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        for begin in range(0, len(finished), gaussian.population_size):
            generation = finished[begin : begin + gaussian.population_size]
            if len(generation) == gaussian.population_size:
                gaussian.tell([(self._position(one.params), one.value) for one in generation])
        sampled = gaussian.ask()
        return {
            name: _value(axis, float(fraction))
            for (name, axis), fraction in zip(self._axes.items(), sampled, strict=True)
        }

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        raise AssertionError(f"{param_name} is no range: the sweep's settings were not checked")

    def _position(self, values: Mapping[str, Any]) -> "np.ndarray[Any, np.dtype[np.float64]]":
        return np.array([_fraction(axis, values[name]) for name, axis in self._axes.items()])


def _fraction(axis: FloatDistribution | IntDistribution, value: float) -> float:
    """Where a value lies between the ends of its range: 0 to 1."""
    low, high = _ends(axis)
    inner = math.log(value) if axis.log else float(value)
    return (inner - low) / (high - low)


def _value(axis: FloatDistribution | IntDistribution, fraction: float) -> float | int:
    low, high = _ends(axis)
    inner = low + fraction * (high - low)
    value = math.exp(inner) if axis.log else inner
    if isinstance(axis, IntDistribution):
        return min(max(round(value), axis.low), axis.high)
    return min(max(value, axis.low), axis.high)


def _ends(axis: FloatDistribution | IntDistribution) -> tuple[float, float]:
    """Half a step further out for whole numbers, so that the outermost have as much room."""
    room = 0.5 if isinstance(axis, IntDistribution) else 0.0
    low, high = axis.low - room, axis.high + room
    return (math.log(low), math.log(high)) if axis.log else (low, high)
