"""A run that is given a time: how many steps follow from what was measured, and nothing else."""

import io
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.errors import ConfigError
from groundup.runs.config import RunConfig
from groundup.training import process_clock
from groundup.training.step_counts import COUNTED_IN_STEPS, scaled_steps, with_num_steps
from groundup.training.time_budget import (
    Costs,
    Repeated,
    TimeBudget,
    describe_settlement,
    num_steps_within,
    settle_num_steps,
)
from groundup.training.timetable import Timetable, measures_checkpoints, times_due

INTERVALS = st.integers(0, 700)
WORKS = st.builds(Repeated, st.floats(0, 30), INTERVALS, st.booleans())
COSTS = st.builds(
    Costs,
    base_num_steps=st.integers(1, 5_000),
    step_seconds=st.floats(0.05, 5),
    starting_seconds=st.floats(0, 60),
    repeated=st.dictionaries(st.sampled_from(["evaluation", "checkpoint"]), WORKS),
    measures_checkpoints=st.booleans(),
)
BUDGETS = st.floats(0, 1_000)


@given(COSTS, BUDGETS)
def test_the_most_steps_that_fit_are_settled(costs: Costs, seconds: float) -> None:
    found = num_steps_within(costs, seconds)
    assert found == 0 or costs.seconds(found) <= seconds
    # None that is longer fits, though a longer run may have fewer evaluations.
    longest = int(seconds / costs.step_seconds) + 2
    assert all(costs.seconds(n) > seconds for n in range(found + 1, longest))


@given(COSTS, BUDGETS, BUDGETS)
def test_more_time_never_means_fewer_steps(costs: Costs, one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert num_steps_within(costs, less) <= num_steps_within(costs, more)


@given(COSTS, BUDGETS, st.integers(1, 5_000))
def test_a_run_has_no_more_steps_than_it_may(costs: Costs, seconds: float, max_steps: int) -> None:
    found = num_steps_within(costs, seconds, max_steps)
    assert found == 0 or costs.seconds(found) <= seconds
    fits = num_steps_within(costs, seconds)
    assert found == fits if fits <= max_steps else found <= max_steps


@given(COSTS, st.integers(1, 3_000))
def test_the_lower_bound_of_the_time_is_one_and_rises(costs: Costs, num_steps: int) -> None:
    assert costs.least_seconds(num_steps) <= costs.seconds(num_steps) * (1 + 1e-12)
    assert costs.least_seconds(num_steps) < costs.least_seconds(num_steps + 1)


@given(COSTS)
def test_what_is_needed_is_enough_for_a_step(costs: Costs) -> None:
    assert num_steps_within(costs, costs.needed_seconds * (1 + 1e-12)) >= 1


@given(st.integers(1, 200), st.integers(0, 250))
def test_due_times_are_those_of_the_timetable(num_steps: int, every_steps: int) -> None:
    config = RunConfig.model_validate(
        {"num_steps": num_steps, "checkpoints": {"every_steps": every_steps}}
    )
    table = Timetable(config, can_evaluate=False, can_sample=False)
    due = [step for step in range(1, num_steps + 1) if table.is_save_due(step)]
    assert times_due(num_steps, every_steps) == len(due)


@given(
    num_steps=st.integers(1, 200),
    base_num_steps=st.integers(1, 200),
    evaluate_every=st.integers(0, 250),
    save_every=st.integers(0, 250),
    keep_best=st.booleans(),
    chosen=st.lists(st.sampled_from(["evaluation.every_steps", "checkpoints.every_steps"])),
)
def test_evaluations_and_checkpoints_are_counted_as_the_run_does_them(
    num_steps: int,
    base_num_steps: int,
    evaluate_every: int,
    save_every: int,
    keep_best: bool,
    chosen: list[str],
) -> None:
    config = RunConfig.model_validate(
        {
            "num_steps": base_num_steps,
            "evaluation": {"every_steps": evaluate_every},
            "checkpoints": {"every_steps": save_every, "keep_best": keep_best},
        }
    )
    works = {
        "evaluation": Repeated(1.0, evaluate_every, "evaluation.every_steps" not in chosen),
        "checkpoint": Repeated(1.0, save_every, "checkpoints.every_steps" not in chosen),
    }
    costs = Costs(
        base_num_steps, 1.0, 0.0, works, measures_checkpoints=measures_checkpoints(config)
    )
    run = with_num_steps(config, num_steps, chosen)
    table = Timetable(run, can_evaluate=True, can_sample=False)
    steps = range(1, num_steps + 1)
    assert costs.num_times(num_steps) == {
        "evaluation": sum(map(table.is_evaluation_due, steps)),
        "checkpoint": sum(map(table.is_save_due, steps)),
    }


@given(st.integers(1, 10_000), st.integers(1, 10_000), st.integers(0, 500))
def test_counts_keep_their_share_of_the_run(before: int, after: int, count: int) -> None:
    sections = {"warmup_steps": count, "decay_steps": max(1, count)}
    base = RunConfig.model_validate({"num_steps": before, "schedule": sections})
    changed = with_num_steps(base, after)
    assert changed.num_steps == after
    assert changed.schedule.warmup_steps == (max(1, round(count * after / before)) if count else 0)
    # What is off stays off, and what is chosen stays as chosen.
    assert changed.samples.every_steps == 0
    assert with_num_steps(base, after, COUNTED_IN_STEPS) == base.model_copy(
        update={"num_steps": after}
    )


def test_every_setting_counted_in_steps_is_known() -> None:
    """By its name; a step of an iteration inside the optimizer is another kind."""
    from groundup.experiments.spec import setting_types

    counted = {name for name in setting_types() if name.endswith("_steps")}
    others = {"num_steps", "max_skipped_steps", "optimizer.orthogonalization_steps"}
    assert counted - others == set(COUNTED_IN_STEPS)
    base = RunConfig.model_validate({"schedule": {"warmup_steps": 5}})
    assert set(scaled_steps(base, 10)) == {
        "num_steps",
        "schedule.warmup_steps",
        *(
            name
            for name in COUNTED_IN_STEPS
            if name.endswith("every_steps") and "samples" not in name
        ),
    }


TEN_MINUTES = TimeBudget(600.0, began=0.0)
MEASURED = Costs(
    base_num_steps=5_000,
    step_seconds=0.02,
    starting_seconds=8.0,
    repeated={"evaluation": Repeated(1.5, 500), "checkpoint": Repeated(0.5, 1_000)},
    num_timed=160,
)


def test_ten_minutes_are_ten_minutes() -> None:
    config = settle_num_steps(RunConfig(), MEASURED, TEN_MINUTES, passed_seconds=30.0)
    # 600 s less 2%, 30 s, 8 s, ten or eleven evaluations and five or six checkpoints.
    left = 600 * 0.98 - 30 - 8
    assert (left - 11 * 1.5 - 6 * 0.5) / 0.02 - 1 <= config.num_steps <= (left - 17.5) / 0.02
    assert config.evaluation.every_steps == round(config.num_steps / 10)
    line = describe_settlement(MEASURED, TEN_MINUTES, 30.0, config.num_steps)
    assert line.startswith(f"10 minutes: {config.num_steps:,} steps of 20 ms (mean of 160), 1")
    assert "evaluation of 1.5 s" in line and line.endswith("12.0 s in reserve")


def test_steps_that_fit_end_a_run_before_its_time() -> None:
    base, budget = RunConfig(num_steps=200), TimeBudget(600.0, began=0.0, max_steps=200)
    assert settle_num_steps(base, MEASURED, budget, passed_seconds=30.0) == base
    line = describe_settlement(MEASURED, budget, 30.0, 200)
    assert line.startswith("10 minutes, at most 200 steps: 200 steps of 20 ms")


@pytest.mark.parametrize(
    ("costs", "passed_seconds", "complaint"),
    [
        (MEASURED, 590.0, "590.0 s have passed"),
        (Costs(5_000, 700.0), 1.0, "one step 700.0 s"),
        (Costs(5_000, 0.02, 900.0), 1.0, "to start takes 900.0 s"),
        (Costs(5_000, 0.02, 0.0, {"evaluation": Repeated(70.0, 500)}), 1.0, "10 × evaluation 700"),
    ],
)
def test_too_little_time_is_an_error_with_numbers(
    costs: Costs, passed_seconds: float, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        settle_num_steps(RunConfig(), costs, TEN_MINUTES, passed_seconds)
    assert "10 minutes cannot hold this run" in str(caught.value)
    least = (passed_seconds + costs.needed_seconds) / 0.98 / 60
    assert f"more than {least:.2g} minutes" in str(caught.value)


def test_a_chosen_interval_does_not_change() -> None:
    works = {"evaluation": Repeated(70.0, 500, keeps_share=False)}
    budget = TimeBudget(600.0, 0.0, chosen=("evaluation.every_steps",))
    config = settle_num_steps(RunConfig(), Costs(5_000, 0.02, 0.0, works), budget, 0.0)
    assert config.evaluation.every_steps == 500
    assert math.ceil(config.num_steps / 500) * 70 + config.num_steps * 0.02 <= 588


def test_a_process_began_before_it_could_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = process_clock._IMPORTED
    assert 0 < process_clock.process_start() <= imported <= time.monotonic()
    for told in ("", "1 (a) b) R 2", "1 (a) " + "nothing " * 20):
        monkeypatch.setattr("builtins.open", lambda *_, text=told, **__: io.StringIO(text))
        assert process_clock.process_start() == imported
