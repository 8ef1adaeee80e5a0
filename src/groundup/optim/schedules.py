"""Learning rates over time, as functions of the step. No torch here."""

import math

from groundup.errors import ConfigError


def cosine_schedule(
    step: int,
    max_learning_rate: float,
    min_learning_rate: float,
    warmup_steps: int,
    cosine_steps: int,
) -> float:
    """Rise in a line, fall along half a cosine, stay at the minimum. With T_w, T_c the two counts:

    t < T_w:         max · t / T_w
    T_w <= t <= T_c: min + (1 + cos(π (t - T_w) / (T_c - T_w))) / 2 · (max - min)
    t > T_c:         min
    """
    _check(step, max_learning_rate, min_learning_rate)
    _check_order(warmup_steps=warmup_steps, cosine_steps=cosine_steps)
    if step < warmup_steps:
        return _warm_up(step, max_learning_rate, warmup_steps)
    share = 0.5 * (1.0 + math.cos(math.pi * _progress(step, warmup_steps, cosine_steps)))
    return _between(max_learning_rate, min_learning_rate, share)


def linear_schedule(
    step: int,
    max_learning_rate: float,
    min_learning_rate: float,
    warmup_steps: int,
    decay_steps: int,
) -> float:
    """Rise in a line until `warmup_steps`, fall in a line until `decay_steps`, then stay."""
    _check(step, max_learning_rate, min_learning_rate)
    _check_order(warmup_steps=warmup_steps, decay_steps=decay_steps)
    if step < warmup_steps:
        return _warm_up(step, max_learning_rate, warmup_steps)
    share = 1.0 - _progress(step, warmup_steps, decay_steps)
    return _between(max_learning_rate, min_learning_rate, share)


def constant_schedule(step: int, learning_rate: float, warmup_steps: int = 0) -> float:
    """Rise in a line until `warmup_steps`, then stay."""
    _check(step, learning_rate, 0.0)
    _check_order(warmup_steps=warmup_steps)
    return learning_rate if step >= warmup_steps else _warm_up(step, learning_rate, warmup_steps)


def warmup_stable_decay_schedule(
    step: int,
    max_learning_rate: float,
    min_learning_rate: float,
    warmup_steps: int,
    decay_start_step: int,
    num_steps: int,
) -> float:
    """Rise in a line, stay at the maximum until `decay_start_step`, fall in a line to the end."""
    _check(step, max_learning_rate, min_learning_rate)
    _check_order(warmup_steps=warmup_steps, decay_start_step=decay_start_step, num_steps=num_steps)
    if step < warmup_steps:
        return _warm_up(step, max_learning_rate, warmup_steps)
    if step <= decay_start_step:
        return max_learning_rate
    share = 1.0 - _progress(step, decay_start_step, num_steps)
    return _between(max_learning_rate, min_learning_rate, share)


def _warm_up(step: int, max_learning_rate: float, warmup_steps: int) -> float:
    return max_learning_rate * (step / warmup_steps)


def _progress(step: int, start: int, end: int) -> float:
    """How far the fall from `start` to `end` has come, from 0 to 1."""
    if step <= start:
        return 0.0
    return 1.0 if step >= end else (step - start) / (end - start)


def _between(high: float, low: float, share: float) -> float:
    """`high` for a share of 1, `low` for 0, and never outside, which rounding would allow."""
    if share == 1.0:
        return high
    return min(high, max(low, low + share * (high - low)))


def _check(step: int, max_learning_rate: float, min_learning_rate: float) -> None:
    if step < 0:
        raise ConfigError(f"steps count from 0; there is no learning rate of step {step}")
    if not 0 <= min_learning_rate < math.inf:
        raise ConfigError(f"the least learning rate must be at least 0; it is {min_learning_rate}")
    if not min_learning_rate <= max_learning_rate < math.inf:
        raise ConfigError(
            f"the greatest learning rate, {max_learning_rate}, must be finite and not below the "
            f"least, {min_learning_rate}"
        )


def _check_order(**stages: int) -> None:
    """Refuse a stage that ends before the one before it."""
    before_name, before = "the beginning", 0
    for name, end in stages.items():
        if end < before:
            raise ConfigError(
                f"{name} is {end}, which is before {before_name}, {before}: a schedule's stages "
                f"follow one another"
            )
        before_name, before = name, end
