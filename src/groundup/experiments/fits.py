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
class PowerLaw:
    """y = floor + factor · x^exponent."""

    factor: float
    exponent: float
    floor: float = 0.0

    def at(self, x: float) -> float:
        return float(self.floor + self.factor * x**self.exponent)


@dataclass(frozen=True)
class FloorFit:
    """A law with a floor, and how far to trust it."""

    law: PowerLaw
    least_floor: float
    """The floors of the laws that have not seen one of the points go from this"""
    greatest_floor: float
    """to this."""
    missed_by: float
    """The last point less what the law says that has not seen it."""
    power_law_missed_by: float
    """The same of a power law without a floor."""


def fit_parabola(sizes: Sequence[float], losses: Sequence[float]) -> tuple[float, float] | None:
    """The size with the least loss, and that loss, by least squares over (ln N, loss).

    None where the parabola bends the wrong way. It is exact through three points.
    """
    logs = numpy.log(numpy.asarray(sizes, dtype=float))
    # Centred, for the squares of large logarithms are nearly alike.
    middle = float(logs.mean())
    square, linear, constant = map(float, numpy.polyfit(logs - middle, losses, 2))
    if square <= 0:
        return None
    offset = -linear / (2 * square)
    # Far outside it means nothing, and may be too large for a float.
    return math.exp(min(middle + offset, 700.0)), constant - square * offset**2


def fit_power_law(xs: Sequence[float], ys: Sequence[float]) -> PowerLaw:
    """Least squares over (ln x, ln y); exact through two points."""
    if len(set(xs)) < 2:
        raise DataError(f"a power law needs two different points, but there are {len(set(xs))}")
    exponent, constant = numpy.polyfit(numpy.log(xs), numpy.log(ys), 1)
    return PowerLaw(math.exp(float(constant)), float(exponent))


def fit_floor_law(xs: Sequence[float], ys: Sequence[float]) -> PowerLaw | None:
    """Least squares over (x, y) for a law that falls to a floor; exact through three points.

    None where they bend too little or the wrong way for a floor above 0.
    """
    if len(set(xs)) < 3:
        return None
    logs = numpy.log(numpy.asarray(xs, dtype=float))
    # Powers of a ratio around 1, for those of the values themselves leave the range of floats.
    middle = float(logs.mean())

    def solve(exponent: float) -> tuple[float, float, float]:
        """Floor and factor, which are linear, and the sum of squares."""
        powers = numpy.exp(exponent * (logs - middle))
        factor, floor = numpy.polyfit(powers, ys, 1)
        return float(floor), float(factor), float(((floor + factor * powers - ys) ** 2).sum())

    exponents = -numpy.geomspace(_LEAST_EXPONENT, _GREATEST_EXPONENT, 60)
    for number in range(12):
        index = int(numpy.argmin([solve(exponent)[2] for exponent in exponents]))
        if number == 0 and index in (0, len(exponents) - 1):
            return None
        begin, end = exponents[max(0, index - 1)], exponents[min(index + 1, len(exponents) - 1)]
        exponents = numpy.linspace(begin, end, 20)
    exponent = float(exponents[len(exponents) // 2])
    floor, factor, _ = solve(exponent)
    # A floor of a millionth is rounding.
    if floor <= 1e-6 * max(ys) or factor <= 0:
        return None
    return PowerLaw(factor * math.exp(-exponent * middle), exponent, floor)


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
