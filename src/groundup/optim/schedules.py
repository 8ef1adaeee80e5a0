"""Learning rates over time, as functions of the step or of the progress of a run. No torch here."""

import math
from collections.abc import Callable

from groundup.errors import ConfigError
from groundup.optim.config import ScheduleConfig

# Of a run under wsd, where nothing else is asked for.
_WSD_DECAY_FRACTION = 0.2


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
    return _decayed(step, max_learning_rate, min_learning_rate, warmup_steps, cosine_steps, _cosine)


def learning_rate_factor(
    schedule: ScheduleConfig, position: float, delta: float, length: float
) -> float:
    """What a step has of the maximum learning rate, from 0 to 1.

    The warm-up is read at the end of the step, so that the first step has a learning rate above 0
    and the last of the warm-up the full one. Stages that a short run has no room for are cut off.

    position, delta, length: where the step begins, how far it goes and where the run ends: `step`,
        1 and `num_steps`, counted from 0; or fractions of the time, with a length of 1.
    """
    warmup = _extent(schedule.warmup_steps, schedule.warmup_fraction, length)
    if position < warmup:
        return min(1.0, (position + delta) / warmup)
    if schedule.name == "constant":
        return 1.0
    start, end = warmup, max(warmup, length)
    is_given = schedule.decay_steps is not None or schedule.decay_fraction is not None
    fraction = schedule.decay_fraction or _WSD_DECAY_FRACTION
    decay = _extent(schedule.decay_steps, fraction, length)
    if schedule.name == "wsd":
        start = max(warmup, length - (decay if is_given or length <= 1 else round(decay)))
    elif is_given:
        end = warmup + decay
    shape = _cosine if schedule.name == "cosine" else _line
    return _decayed(position, 1.0, schedule.min_learning_rate_ratio, start, end, shape)


def _extent(steps: int | None, fraction: float, length: float) -> float:
    return fraction * length if steps is None else steps


def _decayed(
    position: float,
    high: float,
    low: float,
    start: float,
    end: float,
    shape: Callable[[float], float],
) -> float:
    """From `high` at `start` to `low` at `end`, and never outside, which rounding would allow."""
    if position <= start:
        return high
    fraction = shape((position - start) / (end - start)) if position < end else 0.0
    return min(high, max(low, low + fraction * (high - low)))


def _cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def _line(progress: float) -> float:
    return 1.0 - progress
