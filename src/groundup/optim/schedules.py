"""Learning rates over time, as functions of the step. No torch here."""

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
    if not 0 <= warmup_steps <= cosine_steps:
        raise ConfigError(
            f"warmup_steps must be between 0 and cosine_steps, got {warmup_steps} and "
            f"{cosine_steps}"
        )
    bounds = max_learning_rate, min_learning_rate
    _check(step, *bounds)
    if step < warmup_steps:
        return max_learning_rate * (step / warmup_steps)
    return _decayed(step, *bounds, warmup_steps, cosine_steps, _cosine)


def learning_rate_at(
    step: int, schedule: ScheduleConfig, max_learning_rate: float, num_steps: int
) -> float:
    """The learning rate of a step in a run.

    The warm-up is read one step ahead, so that the first step has a learning rate above 0 and the
    last of the warm-up the full one. Stages that a short run has no room for are cut off.

    step: counted from 0.   schedule: its form.   max_learning_rate: the one after the warm-up.
    num_steps: the length of the run, at least 1.
    """
    if num_steps < 1:
        raise ConfigError(f"num_steps must be at least 1, got {num_steps}")
    bounds = max_learning_rate, max_learning_rate * schedule.min_learning_rate_ratio
    _check(step, *bounds)
    warmup = schedule.warmup_steps
    if step < warmup:
        return max_learning_rate * ((step + 1) / warmup)
    if schedule.name == "constant":
        return max_learning_rate
    if schedule.name == "wsd":
        decay_steps = schedule.decay_steps or round(_WSD_DECAY_FRACTION * num_steps)
        start, end = max(warmup, num_steps - decay_steps), max(warmup, num_steps)
    else:
        start = warmup
        end = warmup + (schedule.decay_steps or max(0, num_steps - warmup))
    shape = _cosine if schedule.name == "cosine" else _line
    return _decayed(step, *bounds, start, end, shape)


def _decayed(
    step: int, high: float, low: float, start: int, end: int, shape: Callable[[float], float]
) -> float:
    """From `high` at `start` to `low` at `end`, and never outside, which rounding would allow."""
    if step <= start:
        return high
    fraction = shape((step - start) / (end - start)) if step < end else 0.0
    return min(high, max(low, low + fraction * (high - low)))


def _cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def _line(progress: float) -> float:
    return 1.0 - progress


def _check(step: int, max_learning_rate: float, min_learning_rate: float) -> None:
    if step < 0:
        raise ConfigError(f"step must be at least 0, got {step}")
    if not 0 <= min_learning_rate <= max_learning_rate < math.inf:
        raise ConfigError(
            f"learning rates must be finite, at least 0 and the maximum not below the minimum, "
            f"got {max_learning_rate} and {min_learning_rate}"
        )
