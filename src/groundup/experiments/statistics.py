"""Mean and 95% interval of a few repeated measurements, by Student's t distribution."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Interval:
    """A mean, and how far from it the true mean may lie; unknown when measured only once."""

    mean: float
    half_width: float | None

    def is_apart_from(self, other: "Interval") -> bool:
        """Whether the intervals do not overlap; what was measured once has none."""
        if self.half_width is None or other.half_width is None:
            return False
        return abs(self.mean - other.mean) > self.half_width + other.half_width


def confidence_interval(values: Sequence[float]) -> Interval | None:
    """mean ± t · s / √n over the finite values; None if there are none.

    s is the sample's standard deviation (n - 1 in the denominator), t the quantile of Student's
    distribution with n - 1 degrees of freedom: 12.7 for two values.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    count = len(finite)
    mean = math.fsum(finite) / count
    if count == 1:
        return Interval(mean, None)
    variance = math.fsum((value - mean) ** 2 for value in finite) / (count - 1)
    return Interval(mean, student_quantile(count - 1) * math.sqrt(variance / count))


@lru_cache
def student_quantile(degrees: int) -> float:
    """The t within whose ± range 95% of the distribution lies."""
    low, high = 0.0, math.pi / 2
    for _ in range(100):
        middle = (low + high) / 2
        if _fraction_within(middle, degrees) < 0.95:
            low = middle
        else:
            high = middle
    return math.tan(low) * math.sqrt(degrees)


def _fraction_within(angle: float, degrees: int) -> float:
    """The fraction between ± t, where tan(angle) = t / √degrees: a finite sum for whole degrees."""
    sine, squared = math.sin(angle), math.cos(angle) ** 2
    is_odd = degrees % 2
    term = math.cos(angle) if is_odd else 1.0
    total = 0.0
    for power in range(1 + is_odd, degrees, 2):
        total += term
        term *= squared * power / (power + 1)
    if is_odd:
        return (angle + sine * total) * 2 / math.pi
    return sine * total
