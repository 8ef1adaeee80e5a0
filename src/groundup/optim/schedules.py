"""Learning rates over time, as functions of the step or of the progress of a run. No torch here."""

import math
from collections.abc import Callable
from typing import Literal

from pydantic import Field

from groundup.config import Settings, StepsOrFraction
from groundup.errors import ConfigError

SHAPES: dict[str, Callable[[float], float]] = {
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
    "linear": lambda progress: 1.0 - progress,
    "constant": lambda progress: 1.0,
    "wsd": lambda progress: 1.0 - progress,
}
"""The factor between minimum (0) and peak (1) after a fraction of the decay, by schedule name."""

# Schedules that decay at the end of a run, by default over this fraction of it.
_TAILS, _TAIL = ("wsd",), 0.2


class ScheduleConfig(Settings):
    """Learning-rate schedule."""

    name: Literal[tuple(SHAPES)] = "cosine"  # type: ignore[valid-type]
    """Shape after warm-up: cosine decay, linear decay, constant, or constant then linear decay
(wsd)."""

    warmup_steps: StepsOrFraction = 0
    """Linear warm-up in steps or, below 1, as a fraction of the run."""

    min_learning_rate_ratio: float = Field(default=0.1, ge=0, le=1)
    """Final learning rate as a fraction of the peak."""

    decay_steps: StepsOrFraction | None = Field(default=None, gt=0)
    """Decay in steps or, below 1, as a fraction of the run. Default: from the end of warm-up to the
end of the run; for wsd, the last fifth."""


def cosine_schedule(
    step: int,
    max_learning_rate: float,
    min_learning_rate: float,
    warmup_steps: int,
    cosine_steps: int,
) -> float:
    """The learning rate of step t: linear warm-up, half a cosine down, then the minimum.

        t < T_w:         max · t / T_w
        T_w <= t <= T_c: min + (1 + cos(π (t - T_w) / (T_c - T_w))) / 2 · (max - min)
        t > T_c:         min

    step: t, from 0.   max_learning_rate, min_learning_rate: max and min.
    warmup_steps: T_w.   cosine_steps: T_c, the step at which the cosine ends.
    """
    rates_fit = 0 <= min_learning_rate <= max_learning_rate < math.inf
    if step < 0 or not 0 <= warmup_steps <= cosine_steps or not rates_fit:
        raise ConfigError(
            f"a cosine schedule needs step >= 0, 0 <= warmup_steps <= cosine_steps and "
            f"0 <= minimum <= maximum < inf, got {step}, {warmup_steps}, {cosine_steps}, "
            f"{min_learning_rate} and {max_learning_rate}"
        )
    if step < warmup_steps:
        return max_learning_rate * (step / warmup_steps)
    rates = max_learning_rate, min_learning_rate
    return _decayed(step, *rates, warmup_steps, cosine_steps, SHAPES["cosine"])


def learning_rate_factor(
    schedule: ScheduleConfig, position: float, delta: float, length: float
) -> float:
    """A step's fraction of the peak learning rate.

    The warm-up is evaluated at the end of the step, so that the first step's rate is above 0 and
    the last of the warm-up has the peak. Stages that a short run has no room for are cut off.

    position, delta, length: start and length of the step, and length of the run: `step` from 0, 1
        and `num_steps`; or fractions of the time, with a length of 1.
    """
    warmup = _extent(schedule.warmup_steps, length)
    if position < warmup:
        return min(1.0, (position + delta) / warmup)
    start, end = warmup, max(warmup, length)
    is_given = schedule.decay_steps is not None
    decay = _extent(schedule.decay_steps or _TAIL, length)
    if schedule.name in _TAILS:
        start = max(warmup, length - (decay if is_given or length <= 1 else round(decay)))
    elif is_given:
        end = warmup + decay
    low = schedule.min_learning_rate_ratio
    return _decayed(position, 1.0, low, start, end, SHAPES[schedule.name])


def _extent(steps: float, length: float) -> float:
    return steps * length if steps < 1 else steps


def _decayed(
    position: float,
    high: float,
    low: float,
    start: float,
    end: float,
    shape: Callable[[float], float],
) -> float:
    """From `high` at `start` to `low` at `end`; clamped against rounding."""
    if position <= start:
        return high
    fraction = shape((position - start) / (end - start) if position < end else 1.0)
    return min(high, max(low, low + fraction * (high - low)))
