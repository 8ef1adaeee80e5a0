"""Mean and 95% interval of a few repeated measurements, by Student's t distribution."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# The 97.5% quantile of Student's t for 1, 2, … degrees of freedom.
_QUANTILES = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
)


@dataclass(frozen=True)
class Interval:
    """A mean and the half width of its 95% interval; None for a single measurement."""

    mean: float
    half_width: float | None

    def is_apart_from(self, other: "Interval") -> bool:
        """Whether both have intervals and these do not overlap."""
        if self.half_width is None or other.half_width is None:
            return False
        return abs(self.mean - other.mean) > self.half_width + other.half_width


def confidence_interval(values: Sequence[float]) -> Interval | None:
    """mean ± t · s / √n over the finite values; None if there are none.

    s is the sample's standard deviation (n - 1 in the denominator), t the quantile of Student's
    distribution with n - 1 degrees of freedom: 12.7 for two values. Beyond 21 values t stays that
    of 21, which is at most 6% too much.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    count = len(finite)
    mean = math.fsum(finite) / count
    if count == 1:
        return Interval(mean, None)
    variance = math.fsum((value - mean) ** 2 for value in finite) / (count - 1)
    quantile = _QUANTILES[min(count - 1, len(_QUANTILES)) - 1]
    return Interval(mean, quantile * math.sqrt(variance / count))
