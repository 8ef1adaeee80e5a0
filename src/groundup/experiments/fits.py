"""Curves through measured losses: a parabola in log N at fixed compute, and power laws."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from groundup.errors import DataError


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

    def loss_at(self, size: float) -> float:
        return self.curvature * (math.log(size) - self.center) ** 2 + self.bottom


@dataclass(frozen=True)
class PowerLaw:
    """y = factor · x^exponent."""

    factor: float
    exponent: float

    def at(self, x: float) -> float:
        return float(self.factor * x**self.exponent)


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
