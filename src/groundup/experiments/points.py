"""Points of a sweep: all of a grid, random ones, or those that an Optuna sampler proposes.

A proposal follows from the sweep's seed, the points proposed before it and how these ended, and
from nothing else: after a kill the same points come.
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
"""Points with how they ended (None: under way) and their loss (None: diverged)."""


def known_points(spec: SweepConfig) -> list[Point]:
    """The points of a sweep that is no search."""
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
    """Raise where the package that a sampler needs is not installed."""
    if sampler != "grid" and importlib.util.find_spec("optuna") is None:
        raise MissingExtraError(f"sampler {sampler}", "sweep")


def propose(spec: SweepConfig, history: History) -> Point:
    """The next point: an Optuna study in memory is told the history and asked once."""
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
        # A spec may have lost values that were proposed before.
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
    options: dict[str, Any] = {"seed": seed}
    if spec.sampler == "random":
        return samplers.RandomSampler(**options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        # To lie that points under way will be bad keeps jobs at the same time apart.
        return samplers.TPESampler(**options, constant_liar=True)


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
    """Values are parts of names, so they have few digits: more where the ends share the first."""
    low, high = _ends(one, name)
    if low < value < high:
        digits = 4 + int(math.log10(max(abs(low), abs(high)) / (high - low)))
        value = round(value) if takes_whole_numbers(name) else float(f"{value:.{digits}g}")
    return min(max(value, low), high)
