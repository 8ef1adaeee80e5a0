"""Which points of a sweep are tried: all of a grid, random ones, or those that Optuna proposes.

A sampler gives points one after another and hears how each ended; only Optuna's listens.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from groundup.errors import ConfigError
from groundup.experiments.spec import RangeConfig, SweepConfig, takes_whole_numbers
from groundup.experiments.trials import Point, TrialRecord

_MAX_GRID_POINTS = 10_000


class Sampler(Protocol):
    """Where the points of a sweep come from."""

    def points(self) -> Iterator[Point]:
        """The points, each asked for when there is room to run it."""

    def tell(self, point: Point, records: Sequence[TrialRecord]) -> None:
        """How all repetitions of a point ended."""


class FixedPoints:
    """Points that are known from the beginning."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._points = list(points)

    def points(self) -> Iterator[Point]:
        return iter(self._points)

    def tell(self, point: Point, records: Sequence[TrialRecord]) -> None:
        pass


def make_sampler(spec: SweepConfig, folder: Path) -> Sampler:
    """The sampler that the sweep names; Optuna keeps what it learned in the sweep's folder."""
    if spec.is_search:
        from groundup.experiments.optuna_search import OptunaSampler

        return OptunaSampler(spec, folder)
    return FixedPoints(grid_points(spec) if spec.sampler == "grid" else random_points(spec))


def grid_points(spec: SweepConfig) -> list[Point]:
    """Every combination of variants, grid values and points of ranges."""
    axes = dict(spec.grid)
    for name, range_ in spec.ranges.items():
        values = list(_spread(range_))
        axes[name] = (
            list(dict.fromkeys(map(round, values))) if takes_whole_numbers(name) else values
        )
    num_points = max(1, len(spec.variants))
    for values in axes.values():
        num_points *= len(values)
    if num_points > _MAX_GRID_POINTS:
        raise ConfigError(
            f"the grid of {spec.name} has {num_points:,} points, more than {_MAX_GRID_POINTS:,}: "
            f"give fewer values, or sample some with sampler random"
        )
    return [
        Point(dict(zip(axes, values, strict=True)), variant)
        for variant in spec.variants or [None]
        for values in itertools.product(*axes.values())
    ]


def random_points(spec: SweepConfig) -> list[Point]:
    """num_trials samples; each depends on its number alone, so more trials keep the first ones."""
    assert spec.num_trials is not None
    return [_sample(spec, number) for number in range(spec.num_trials)]


def _sample(spec: SweepConfig, number: int) -> Point:
    generator = random.Random(f"{spec.sampler_seed}/{number}")
    variant = generator.choice(list(spec.variants)) if spec.variants else None
    settings = {name: generator.choice(values) for name, values in spec.grid.items()}
    for name, range_ in spec.ranges.items():
        value = _between(range_, generator.random())
        settings[name] = round(value) if takes_whole_numbers(name) else float(f"{value:.4g}")
    return Point(settings, variant)


def _spread(range_: RangeConfig) -> Iterator[float]:
    """The points of a grid: the ends and equal steps between, of the value or of its logarithm."""
    for number in range(range_.num):
        fraction = number / (range_.num - 1) if range_.num > 1 else 0.0
        value = _between(range_, fraction)
        yield value if fraction in (0.0, 1.0) else float(f"{value:.4g}")


def _between(range_: RangeConfig, fraction: float) -> float:
    low, high = range_.low, range_.high
    if fraction in (0.0, 1.0):
        return high if fraction else low
    if range_.scale == "linear":
        return low + fraction * (high - low)
    return float(low ** (1 - fraction) * high**fraction)
