"""Laws of the learning rate over time."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.errors import ConfigError
from groundup.optim import (
    constant_schedule,
    cosine_schedule,
    linear_schedule,
    warmup_stable_decay_schedule,
)

counts = st.integers(min_value=0, max_value=2000)
rates = st.floats(min_value=0, max_value=10, allow_subnormal=False)


@st.composite
def schedules(draw: st.DrawFn) -> tuple[Any, float, float, int, int, int]:
    """A schedule as a function of the step, its bounds, and where its stages begin and end."""
    low, high = sorted([draw(rates), draw(rates)])
    warmup, start, end = sorted([draw(counts), draw(counts), draw(counts)])
    kind = draw(st.sampled_from(["cosine", "linear", "constant", "wsd"]))
    if kind == "cosine":
        return (
            (lambda t: cosine_schedule(t, high, low, warmup, end)),
            low,
            high,
            warmup,
            warmup,
            end,
        )
    if kind == "linear":
        return (
            (lambda t: linear_schedule(t, high, low, warmup, end)),
            low,
            high,
            warmup,
            warmup,
            end,
        )
    if kind == "constant":
        return (lambda t: constant_schedule(t, high, warmup)), high, high, warmup, warmup, warmup
    return (
        (lambda t: warmup_stable_decay_schedule(t, high, low, warmup, start, end)),
        low,
        high,
        warmup,
        start,
        end,
    )


@given(schedules(), counts)
def test_rates_stay_within_their_bounds(schedule: Any, step: int) -> None:
    rate, low, high, warmup, _, _ = schedule
    assert (0 if step < warmup else low) <= rate(step) <= high


def test_the_greatest_rate_is_reached_to_the_last_bit() -> None:
    low, high = 1.4929753047466368, 5.55052136778795
    assert low + (high - low) < high
    assert cosine_schedule(0, high, low, 0, 10) == linear_schedule(0, high, low, 0, 10) == high


@given(schedules(), counts)
def test_rates_rise_then_stay_then_fall_then_stay(schedule: Any, step: int) -> None:
    rate, low, high, warmup, start, end = schedule
    if step < warmup:
        assert rate(step) <= rate(step + 1)
        assert rate(step) == pytest.approx(high * step / warmup)
    elif step <= start:
        assert rate(step) == high
    elif step < end:
        assert rate(step) >= rate(step + 1)
    else:
        assert rate(step) == low


@given(schedules(), counts)
def test_rates_make_no_jumps(schedule: Any, step: int) -> None:
    rate, low, high, warmup, start, end = schedule
    # The steepest stage: the rise, a line down, or the middle of a cosine.
    steepest = max(
        high / warmup if step < warmup else 0.0,
        (high - low) * math.pi / 2 / (end - start) if start <= step and end > start else 0.0,
        high - low if end == start else 0.0,
    )
    assert abs(rate(step + 1) - rate(step)) <= steepest * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize(
    ("step", "expected"),
    [(0, 0.0), (1, 1 / 7), (6, 6 / 7), (7, 1.0), (14, 0.55), (21, 0.1), (22, 0.1), (10_000, 0.1)],
)
def test_cosine_by_hand(step: int, expected: float) -> None:
    assert cosine_schedule(step, 1.0, 0.1, 7, 21) == pytest.approx(expected)


@pytest.mark.parametrize(("step", "expected"), [(0, 0.0), (2, 0.5), (4, 1.0), (9, 0.5), (14, 0.0)])
def test_linear_by_hand(step: int, expected: float) -> None:
    assert linear_schedule(step, 1.0, 0.0, 4, 14) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("step", "expected"), [(1, 0.5), (2, 1.0), (10, 1.0), (15, 0.6), (20, 0.2), (21, 0.2)]
)
def test_warmup_stable_decay_by_hand(step: int, expected: float) -> None:
    assert warmup_stable_decay_schedule(step, 1.0, 0.2, 2, 10, 20) == pytest.approx(expected)


def test_constant_by_hand() -> None:
    assert [constant_schedule(step, 2.0, 4) for step in (0, 1, 4, 9)] == [0.0, 0.5, 2.0, 2.0]
    assert constant_schedule(0, 2.0) == 2.0


@pytest.mark.parametrize(
    ("schedule", "arguments", "complaint"),
    [
        (cosine_schedule, (-1, 1.0, 0.1, 1, 2), "step -1"),
        (cosine_schedule, (0, 0.1, 1.0, 1, 2), "0.1.*below the least, 1.0"),
        (cosine_schedule, (0, 1.0, -0.1, 1, 2), "-0.1"),
        (cosine_schedule, (0, math.nan, 0.1, 1, 2), "nan"),
        (cosine_schedule, (0, 1.0, 0.1, -3, 2), "warmup_steps is -3"),
        (cosine_schedule, (0, 1.0, 0.1, 5, 4), "cosine_steps is 4.*warmup_steps, 5"),
        (linear_schedule, (0, 1.0, 0.1, 5, 4), "decay_steps is 4"),
        (linear_schedule, (0, math.inf, 0.1, 1, 4), "inf"),
        (constant_schedule, (0, -1.0), "-1.0"),
        (constant_schedule, (0, 1.0, -1), "warmup_steps is -1"),
        (warmup_stable_decay_schedule, (0, 1.0, 0.1, 5, 4, 9), "decay_start_step is 4"),
        (warmup_stable_decay_schedule, (0, 1.0, 0.1, 5, 9, 8), "num_steps is 8"),
    ],
)
def test_settings_that_make_no_sense_are_named(
    schedule: Any, arguments: tuple[Any, ...], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        schedule(*arguments)
