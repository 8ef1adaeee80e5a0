"""Points of a sweep: a grid, or the proposals of a search by Optuna.

A proposal depends only on the sweep's seed, the earlier points and their results, so that the same
points are proposed after a kill.
"""

import itertools
import math
import random
import warnings
from collections.abc import Sequence
from typing import Any

from groundup.errors import ConfigError
from groundup.experiments.spec import RangeConfig, SweepConfig
from groundup.experiments.trials import Point, Status

_MAX_GRID_POINTS = 10_000
_VARIANT = "variant"

History = Sequence[tuple[Point, Status | None, float | None]]
"""Points with their status (None: running) and loss (None: diverged)."""


def grid_points(spec: SweepConfig) -> list[Point]:
    """Every combination of variants and grid values."""
    values = spec.grid
    num_points = max(1, len(spec.variants)) * math.prod(map(len, values.values()))
    if num_points > _MAX_GRID_POINTS:
        raise ConfigError(
            f"the grid has {num_points:,} points, more than {_MAX_GRID_POINTS:,}: give fewer "
            f"values, or search with num_trials"
        )
    return [
        Point(dict(zip(values, chosen, strict=True)), variant)
        for variant in spec.variants or [None]
        for chosen in itertools.product(*values.values())
    ]


def propose(spec: SweepConfig, history: History) -> Point:
    """The next point, from an in-memory Optuna study of the history."""
    import optuna
    from optuna.exceptions import ExperimentalWarning
    from optuna.trial import TrialState, create_trial

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    choices: dict[str, list[Any]] = {_VARIANT: list(spec.variants)} if spec.variants else {}
    choices |= spec.grid
    distributions: dict[str, Any] = {
        name: optuna.distributions.CategoricalDistribution(range(len(values)))
        for name, values in choices.items()
    }
    distributions |= {name: _distribution(one) for name, one in spec.ranges.items()}
    seed = random.Random(f"{spec.sampler_seed}/{len(history)}").getrandbits(32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        # Assuming bad results for running points keeps concurrent jobs apart.
        sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    study = optuna.create_study(sampler=sampler)
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
        name: choices[name][value] if name in choices else _rounded(spec.ranges[name], value)
        for name, value in asked.items()
    }
    return Point(found, found.pop(_VARIANT, None))


def _distribution(one: RangeConfig) -> Any:
    from optuna.distributions import FloatDistribution, IntDistribution

    kind: Any = IntDistribution if one.is_whole else FloatDistribution
    return kind(one.low, one.high, log=one.scale == "log")


def _rounded(one: RangeConfig, value: float) -> float:
    """Round to few digits, because values are parts of names; more for narrow ranges."""
    low, high = one.low, one.high
    if low < value < high and not one.is_whole:
        digits = 4 + int(math.log10(max(abs(low), abs(high)) / (high - low)))
        value = float(f"{value:.{digits}g}")
    return min(max(value, low), high)
