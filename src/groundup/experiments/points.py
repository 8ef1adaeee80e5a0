"""Points of a sweep: a grid, random points, or proposals by an Optuna sampler.

A proposal depends only on the sweep's seed, the earlier points and their results, so that the same
points are proposed after a kill.
"""

import importlib.util
import itertools
import math
import random
import warnings
from collections.abc import Sequence
from typing import Any

from groundup.errors import ConfigError, MissingExtraError
from groundup.experiments.spec import RangeConfig, SweepConfig, takes_whole_numbers
from groundup.experiments.trials import Point, Status

_MAX_GRID_POINTS = 10_000
_VARIANT = "variant"

History = Sequence[tuple[Point, Status | None, float | None]]
"""Points with their status (None: running) and loss (None: diverged)."""


def known_points(spec: SweepConfig) -> list[Point]:
    """The points of a sweep that is not a search."""
    if spec.sampler == "grid":
        return grid_points(spec)
    points: list[Point] = []
    for _ in range(spec.num_trials or 0):
        points.append(propose(spec, [(point, None, None) for point in points]))
    return points


def grid_points(spec: SweepConfig) -> list[Point]:
    """Every combination of variants and grid values."""
    values = spec.grid
    num_points = max(1, len(spec.variants)) * math.prod(map(len, values.values()))
    if num_points > _MAX_GRID_POINTS:
        raise ConfigError(
            f"the grid has {num_points:,} points, more than {_MAX_GRID_POINTS:,}: give fewer "
            f"values, or sample some with sampler random"
        )
    return [
        Point(dict(zip(values, chosen, strict=True)), variant)
        for variant in spec.variants or [None]
        for chosen in itertools.product(*values.values())
    ]


def check_packages(sampler: str) -> None:
    """Raise MissingExtraError if the sampler needs a package that is not installed."""
    if sampler != "grid" and importlib.util.find_spec("optuna") is None:
        raise MissingExtraError(f"sampler {sampler}", "sweep")


def propose(spec: SweepConfig, history: History) -> Point:
    """The next point, from an in-memory Optuna study of the history."""
    import optuna
    from optuna.trial import TrialState, create_trial

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    choices: dict[str, list[Any]] = {_VARIANT: list(spec.variants)} if spec.variants else {}
    choices |= spec.grid
    distributions: dict[str, Any] = {
        name: optuna.distributions.CategoricalDistribution(range(len(values)))
        for name, values in choices.items()
    }
    distributions |= {name: _distribution(one, name) for name, one in spec.ranges.items()}
    study = optuna.create_study(sampler=_make_sampler(spec, len(history)))
    worst = max((loss for _, _, loss in history if loss is not None), default=None)
    for point, status, loss in history:
        values = {_VARIANT: point.variant, **point.settings}
        params = {
            name: choices[name].index(values[name])
            if values.get(name) in choices.get(name, ())
            else values.get(name)
            for name in distributions
        }
        # The spec may no longer contain values that were proposed earlier.
        is_known = all(
            isinstance(value, int | float) and distributions[name]._contains(value)
            for name, value in params.items()
        )
        if is_known and (status is None or worst is not None):
            state = TrialState.RUNNING if status is None else TrialState.COMPLETE
            value = None if status is None else (worst if loss is None else loss)
            study.add_trial(
                create_trial(state=state, params=params, distributions=distributions, value=value)
            )
    asked = study.ask(distributions).params
    found: dict[str, Any] = {
        name: choices[name][value] if name in choices else _rounded(spec.ranges[name], name, value)
        for name, value in asked.items()
    }
    return Point(found, found.pop(_VARIANT, None))


def _make_sampler(spec: SweepConfig, number: int) -> Any:
    from optuna import samplers
    from optuna.exceptions import ExperimentalWarning

    seed = random.Random(f"{spec.sampler_seed}/{number}").getrandbits(32)
    if spec.sampler == "random":
        return samplers.RandomSampler(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        # Assuming bad results for running points keeps concurrent jobs apart.
        return samplers.TPESampler(seed=seed, constant_liar=True)


def _ends(one: RangeConfig, name: str) -> tuple[float, float]:
    if takes_whole_numbers(name):
        return math.ceil(one.low), math.floor(one.high)
    return one.low, one.high


def _distribution(one: RangeConfig, name: str) -> Any:
    from optuna.distributions import FloatDistribution, IntDistribution

    low, high = _ends(one, name)
    kind: Any = IntDistribution if takes_whole_numbers(name) else FloatDistribution
    return kind(low, high, log=one.scale == "log")


def _rounded(one: RangeConfig, name: str, value: float) -> float:
    """Round to few digits, because values are parts of names; more for narrow ranges."""
    low, high = _ends(one, name)
    if low < value < high:
        digits = 4 + int(math.log10(max(abs(low), abs(high)) / (high - low)))
        value = round(value) if takes_whole_numbers(name) else float(f"{value:.{digits}g}")
    return min(max(value, low), high)
