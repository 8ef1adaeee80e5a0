"""Learning rates beyond a list: which is next, and when there is none."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.experiments.ablation import TriedRates, next_rate, read_tried
from groundup.experiments.trials import LEARNING_RATE, TrialRecord

LIST = [0.001, 0.003, 0.006]


def next_of(losses: dict[float, float], lost: set[float] = frozenset(), **options: Any) -> Any:  # type: ignore[assignment]
    tried = TriedRates(losses, set(lost))
    asked = options.pop("asked", {*LIST, *tried.rates})
    return next_rate(tried, options.pop("listed", LIST), asked, options.pop("max_extra", 3))


def test_a_best_rate_inside_needs_no_other() -> None:
    assert next_of({0.001: 3.0, 0.003: 2.0, 0.006: 3.0}) is None


def test_the_next_is_as_far_as_the_step_at_that_end() -> None:
    assert next_of({0.001: 1.0, 0.003: 2.0, 0.006: 3.0}) == 0.00033
    assert next_of({0.001: 3.0, 0.003: 2.0, 0.006: 1.0}) == 0.012
    assert next_of({0.00033: 0.5, 0.001: 1.0, 0.003: 2.0, 0.006: 3.0}) == 0.00011


def test_a_side_has_a_limit_and_none_keeps_to_the_list() -> None:
    falling = {0.001: 4.0, 0.003: 3.0, 0.006: 2.0, 0.012: 1.0, 0.024: 0.5, 0.048: 0.1}
    assert next_of(falling) is None
    assert next_of(falling, max_extra=4) == 0.096
    assert next_of({0.001: 1.0, 0.003: 2.0, 0.006: 3.0}, max_extra=0) is None


def test_a_rate_that_diverged_ends_the_way_up() -> None:
    assert next_of({0.001: 2.0, 0.003: 1.0}, {0.006}) is None
    assert next_of({0.001: 2.0, 0.003: 1.5, 0.006: 1.0}, {0.012}) is None


def test_where_all_diverged_the_way_is_down() -> None:
    assert next_of({}, {0.001, 0.003, 0.006}) == 0.00033
    assert next_of({}, {0.00011, 0.00033, 3.7e-5, *LIST}) is None


def test_a_rate_that_failed_is_not_asked_for_again_nor_passed() -> None:
    losses = {0.001: 1.0, 0.003: 2.0, 0.006: 3.0}
    assert next_of(losses, asked={*LIST, 0.00033}) is None
    # In the list itself too, and where all failed there is nothing to go by.
    assert next_of({0.003: 1.0}) is None
    assert next_of({0.006: 1.0}) == 0.012
    assert next_of({}) is None


def test_one_rate_is_a_choice() -> None:
    assert next_of({0.001: 1.0}, listed=[0.001], asked={0.001}) is None
    assert next_of({0.001: 1.0}, listed=[0.001, 0.001], asked={0.001}) is None


@given(
    st.floats(1e-6, 10),
    st.floats(1.0000001, 100),
    st.integers(0, 5),
    st.booleans(),
)
def test_every_step_leads_outward_and_the_search_ends(
    low: float, ratio: float, max_extra: int, is_down: bool
) -> None:
    listed = [low, low * ratio]
    losses = {rate: rate if is_down else -rate for rate in listed}
    tried = TriedRates(losses)
    for _ in range(max_extra):
        rate = next_rate(tried, listed, set(tried.rates), max_extra)
        assert rate is not None
        assert rate < tried.rates[0] if is_down else rate > tried.rates[-1]
        losses[rate] = rate if is_down else -rate
    assert next_rate(tried, listed, set(tried.rates), max_extra) is None
    assert tried.is_at_edge


def record(rate: float, status: str, loss: float | None, seed: int = 0) -> TrialRecord:
    settings = {LEARNING_RATE: rate}
    name = f"{rate}+{seed}"
    return TrialRecord(name, name, status, seed, settings, "a", best_validation_loss=loss)  # type: ignore[arg-type]


def test_what_was_tried_is_read_from_one_seed_and_failures_are_left_out(make_spec: Any) -> None:
    records = [
        record(0.1, "finished", 2.0),
        record(0.2, "finished", 1.0),
        record(0.3, "diverged", 0.5),
        record(0.4, "failed", None),
        record(0.5, "finished", 0.1, seed=1),
    ]
    tried = read_tried(make_spec(variants={"a": {}}), records)["a"]
    assert tried.rates == [0.1, 0.2, 0.3] and tried.best == 0.2 and not tried.is_at_edge


@pytest.mark.parametrize(
    ("losses", "lost", "is_at_edge"),
    [
        ({0.1: 1.0, 0.2: 2.0}, set(), True),
        ({0.1: 2.0, 0.2: 1.0}, set(), True),
        ({0.1: 2.0, 0.2: 1.0}, {0.4}, False),
        ({0.1: 1.0}, set(), True),
        ({}, {0.1}, False),
    ],
)
def test_an_edge_is_that_of_the_rates_that_were_tried(
    losses: dict[float, float], lost: set[float], is_at_edge: bool
) -> None:
    assert TriedRates(losses, lost).is_at_edge == is_at_edge
