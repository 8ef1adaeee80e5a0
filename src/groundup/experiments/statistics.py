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
    num_values: int

    @property
    def low(self) -> float:
        return self.mean - (self.half_width or 0.0)

    @property
    def high(self) -> float:
        return self.mean + (self.half_width or 0.0)

    def overlaps(self, other: "Interval") -> bool:
        return self.low <= other.high and other.low <= self.high

    def is_apart_from(self, other: "Interval") -> bool:
        """Is the difference clear? What was measured once has no interval, and nothing is."""
        has_both = self.half_width is not None and other.half_width is not None
        return has_both and not self.overlaps(other)


def confidence_interval(values: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """mean ± t · s / √n over the finite values; None if there are none.

    s is the sample's standard deviation (n - 1 in the denominator), t the quantile of Student's
    distribution with n - 1 degrees of freedom: for two values it is 12.7, which is the price of
    claiming anything from two.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    count = len(finite)
    mean = math.fsum(finite) / count
    if count == 1:
        return Interval(mean, None, 1)
    variance = math.fsum((value - mean) ** 2 for value in finite) / (count - 1)
    quantile = student_quantile(count - 1, confidence)
    return Interval(mean, quantile * math.sqrt(variance / count), count)


@lru_cache
def student_quantile(degrees: int, confidence: float = 0.95) -> float:
    """The t within whose ± range a fraction `confidence` of the distribution lies."""
    if degrees < 1 or not 0 < confidence < 1:
        raise ValueError(f"no t for {degrees} degrees of freedom and a fraction of {confidence}")
    low, high = 0.0, math.pi / 2
    for _ in range(100):
        middle = (low + high) / 2
        if _fraction_within(middle, degrees) < confidence:
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
