"""Curves through measured losses: a parabola in log N at fixed compute, and power laws.

A power law goes to zero; one with a floor leaves a loss that nothing takes away. Which of the two
is nearer the truth is asked of the last point, which neither has seen.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from groundup.errors import DataError

# A loss that falls more slowly than the first looks like a straight line, faster than the second
# like a step.
_LEAST_EXPONENT, _GREATEST_EXPONENT = 0.005, 5.0


@dataclass(frozen=True)
class Parabola:
    """loss = curvature · (ln N - center)² + bottom: loss over size at fixed compute."""

    curvature: float
    center: float
    bottom: float

    @property
    def has_minimum(self) -> bool:
        return self.curvature > 0

    @property
    def best_size(self) -> float:
        """The N with the least loss."""
        return math.exp(self.center)


@dataclass(frozen=True)
class PowerLaw:
    """y = factor · x^exponent."""

    factor: float
    exponent: float

    def at(self, x: float) -> float:
        return float(self.factor * x**self.exponent)


@dataclass(frozen=True)
class FloorLaw:
    """y = floor + factor · x^exponent."""

    floor: float
    factor: float
    exponent: float

    def at(self, x: float) -> float:
        return float(self.floor + self.factor * x**self.exponent)


@dataclass(frozen=True)
class FloorFit:
    """A law with a floor, and how far to trust it."""

    law: FloorLaw
    least_floor: float
    """The floors of the laws that have not seen one of the points go from this"""
    greatest_floor: float
    """to this."""
    missed_by: float
    """The last point less what the law says that has not seen it."""
    power_law_missed_by: float
    """The same of a power law without a floor."""


def fit_parabola(sizes: Sequence[float], losses: Sequence[float]) -> Parabola:
    """Least squares over (ln N, loss); exact through three points."""
    if len(set(sizes)) < 3:
        raise DataError(
            f"a parabola needs losses of three sizes, but there are {len(set(sizes))}: train more "
            f"sizes, or lower the learning rate if some diverged"
        )
    logs = numpy.log(numpy.asarray(sizes, dtype=float))
    # Centred, for the squares of large logarithms are nearly alike.
    middle = float(logs.mean())
    square, linear, constant = map(float, numpy.polyfit(logs - middle, losses, 2))
    if square == 0:
        return Parabola(0.0, middle, constant)
    offset = -linear / (2 * square)
    return Parabola(square, middle + offset, constant - square * offset**2)


def fit_power_law(xs: Sequence[float], ys: Sequence[float]) -> PowerLaw:
    """Least squares over (ln x, ln y); exact through two points."""
    if len(set(xs)) < 2:
        raise DataError(f"a power law needs two different points, but there are {len(set(xs))}")
    exponent, constant = numpy.polyfit(numpy.log(xs), numpy.log(ys), 1)
    return PowerLaw(math.exp(float(constant)), float(exponent))


def fit_floor_law(xs: Sequence[float], ys: Sequence[float]) -> FloorLaw | None:
    """Least squares over (x, y) for a law that falls; exact through three points.

    None where they bend too little or the wrong way for a floor above 0.
    """
    if len(set(xs)) < 3:
        return None
    logs = numpy.log(numpy.asarray(xs, dtype=float))
    # Powers of a ratio around 1, for those of the values themselves leave the range of floats.
    middle = float(logs.mean())
    values = numpy.asarray(ys, dtype=float)

    def solve(exponent: float) -> tuple[float, float, float]:
        return _solve_line(numpy.exp(exponent * (logs - middle)), values)

    # All but the exponent is linear, so the search has but one dimension.
    exponents = -numpy.geomspace(_LEAST_EXPONENT, _GREATEST_EXPONENT, 60)
    index = int(numpy.argmin([solve(exponent)[2] for exponent in exponents]))
    if index in (0, len(exponents) - 1):
        return None
    low, high = float(exponents[index + 1]), float(exponents[index - 1])
    for _ in range(80):
        third = (high - low) / 3
        if solve(low + third)[2] < solve(high - third)[2]:
            high -= third
        else:
            low += third
    exponent = (low + high) / 2
    floor, factor, _ = solve(exponent)
    if floor <= 0 or factor <= 0:
        return None
    return FloorLaw(floor, factor * math.exp(-exponent * middle), exponent)


def judge_floor_law(xs: Sequence[float], ys: Sequence[float]) -> FloorFit | None:
    """The law, judged by leaving out each point in turn.

    None with fewer than four points, and where a floor hangs on a single one of them.
    """
    points = sorted(zip(xs, ys, strict=True))
    if len(set(xs)) < 4:
        return None
    law = fit_floor_law(*zip(*points, strict=True))
    others = [points[:index] + points[index + 1 :] for index in range(len(points))]
    laws = [fit_floor_law(*zip(*some, strict=True)) for some in others]
    known = [one for one in laws if one is not None]
    if law is None or len(known) < len(points):
        return None
    x, y = points[-1]
    power_law = fit_power_law(*zip(*others[-1], strict=True))
    floors = [one.floor for one in known]
    return FloorFit(law, min(floors), max(floors), y - known[-1].at(x), y - power_law.at(x))


def _solve_line(xs: "numpy.ndarray", ys: "numpy.ndarray") -> tuple[float, float, float]:
    """Constant, slope and sum of squares of the line through the points."""
    around = xs - xs.mean()
    slope = float(around @ (ys - ys.mean()) / (around @ around))
    constant = float(ys.mean() - slope * xs.mean())
    return constant, slope, float(((constant + slope * xs - ys) ** 2).sum())
