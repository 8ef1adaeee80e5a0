"""How many steps follow from a time and what was measured, and what a probe measures."""

import math
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundup.data.batches.loader import Batch
from groundup.errors import ConfigError
from groundup.model.config import ModelConfig
from groundup.runs.config import COUNTED_IN_STEPS, RunConfig, scaled_steps, with_num_steps
from groundup.training import budget as module
from groundup.training.budget import (
    Costs,
    TimeBudget,
    choose_num_steps,
    describe_choice,
    probe_this_machine,
    time_steps,
)
from groundup.training.execution import resolve
from groundup.training.timetable import Timetable, times_due

EVERY = ("evaluation.every_steps", "checkpoints.every_steps")
CONFIGS = st.builds(
    lambda num_steps, evaluate, save, keep_best: RunConfig.model_validate(
        {
            "num_steps": num_steps,
            "evaluation": {"every_steps": evaluate},
            "checkpoints": {"every_steps": save, "keep_best": keep_best},
        }
    ),
    st.integers(1, 300),
    st.integers(0, 350),
    st.integers(0, 350),
    st.booleans(),
)
COSTS = st.builds(
    Costs,
    step=st.floats(0.05, 5),
    start=st.floats(0, 60),
    repeated=st.dictionaries(st.sampled_from(["evaluation", "checkpoint"]), st.floats(0, 30)),
    reserve=st.just(0.0),
)
CHOSEN = st.lists(st.sampled_from(EVERY))
BUDGETS = st.floats(0, 1_000)


@given(CONFIGS, COSTS, BUDGETS, CHOSEN, st.none() | st.integers(1, 5_000))
def test_a_run_fits_into_its_time_or_is_refused(
    config: RunConfig, costs: Costs, seconds: float, chosen: list[str], max_steps: int | None
) -> None:
    budget = TimeBudget(seconds, 0.0, chosen, max_steps)
    try:
        run = choose_num_steps(config, costs, budget, 0.0)
    except ConfigError:
        assert costs.of_run(with_num_steps(config, config.num_steps)) > seconds
        return
    assert costs.of_run(run) <= seconds
    assert run == with_num_steps(config, run.num_steps, chosen)
    assert max_steps is None or run.num_steps <= max_steps
    # Room for another step is left only by the rounding of intervals, or by the limit.
    most = costs.start + (run.num_steps + 2) * costs.step
    most += sum(3 * costs.repeated[name] * (2 + n) for name, n in costs.times(run).items())
    assert most > seconds or run.num_steps == max_steps


@given(st.floats(0.01, 5), st.floats(0, 5), BUDGETS)
def test_without_intervals_the_most_steps_are_chosen(
    step: float, once: float, seconds: float
) -> None:
    config = RunConfig(evaluation={"every_steps": 0}, checkpoints={"every_steps": 0})
    costs = Costs(step, repeated={"checkpoint": once}, reserve=0.0)
    if seconds < once + step:
        return
    run = choose_num_steps(config, costs, TimeBudget(seconds, 0.0), 0.0)
    assert costs.of_run(run) <= seconds < once + (run.num_steps + 1) * step * (1 + 1e-9)


@given(CONFIGS, st.integers(1, 300), CHOSEN, st.data())
def test_evaluations_and_checkpoints_are_counted_as_the_run_does_them(
    base: RunConfig, num_steps: int, chosen: list[str], data: st.DataObject
) -> None:
    run = with_num_steps(base, num_steps, chosen)
    table = Timetable(run, can_evaluate=True, can_sample=False)
    steps_done = data.draw(st.integers(0, num_steps - 1))
    steps = range(steps_done + 1, num_steps + 1)
    counted = times_due(run, steps_done)
    assert counted["evaluation"] == sum(map(table.is_evaluation_due, steps))
    assert counted["checkpoint"] == sum(map(table.is_save_due, steps))


@given(st.integers(1, 10_000), st.integers(1, 10_000), st.integers(0, 500))
def test_counts_keep_their_fraction_of_the_run(before: int, after: int, count: int) -> None:
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
    others = {"num_steps", "max_skipped_steps"}
    assert counted - others == set(COUNTED_IN_STEPS)
    base = RunConfig.model_validate({"schedule": {"warmup_steps": 5}})
    assert scaled_steps(base, 10).keys() == {
        "num_steps",
        *(set(COUNTED_IN_STEPS) - {"samples.every_steps", "schedule.decay_steps"}),
    }


TEN_MINUTES = TimeBudget(600.0, began=0.0)
CONFIG = RunConfig(checkpoints={"every_steps": 1_000, "keep_best": False})
MEASURED = Costs(0.02, 8.0, {"evaluation": 1.5, "checkpoint": 0.5}, num_timed=160)


def test_ten_minutes_are_ten_minutes() -> None:
    run = choose_num_steps(CONFIG, MEASURED, TEN_MINUTES, passed_seconds=30.0)
    # 600 s less 2%, 30 s, 8 s, ten or eleven evaluations and five or six checkpoints.
    left = 600 * 0.98 - 30 - 8
    assert (left - 11 * 1.5 - 6 * 0.5) / 0.02 - 1 <= run.num_steps <= (left - 17.5) / 0.02
    assert run.evaluation.every_steps == round(run.num_steps / 10)
    line = describe_choice(MEASURED, TEN_MINUTES, 30.0, run)
    assert line.startswith(f"10 minutes: {run.num_steps:,} steps of 20 ms (mean of 160), 1")
    assert "evaluation of 1.5 s" in line and line.endswith("12.0 s in reserve")


def test_steps_that_fit_end_a_run_before_its_time() -> None:
    base, budget = RunConfig(num_steps=200), TimeBudget(600.0, began=0.0, max_steps=200)
    assert choose_num_steps(base, MEASURED, budget, passed_seconds=30.0) == base
    line = describe_choice(MEASURED, budget, 30.0, base)
    assert line.startswith("10 minutes, at most 200 steps: 200 steps of 20 ms")


@pytest.mark.parametrize(
    ("costs", "passed_seconds", "complaint"),
    [
        (MEASURED, 590.0, "590.0 s have passed"),
        (Costs(700.0), 1.0, "one step 700.0 s"),
        (Costs(0.02, 900.0), 1.0, "to start takes 900.0 s"),
        (Costs(0.02, 0.0, {"evaluation": 70.0}), 1.0, "10 × evaluation 700"),
    ],
)
def test_too_little_time_is_an_error_with_numbers(
    costs: Costs, passed_seconds: float, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        choose_num_steps(CONFIG, costs, TEN_MINUTES, passed_seconds)
    assert "10 minutes cannot hold this run" in str(caught.value)
    times = {"evaluation": 10, "checkpoint": 5}
    needed = sum(times[name] * seconds for name, seconds in costs.repeated.items())
    least = (passed_seconds + costs.start + costs.step + needed) / 0.98 / 60
    assert f"more than {least:.2g} minutes" in str(caught.value)


def test_a_chosen_interval_does_not_change() -> None:
    budget = TimeBudget(600.0, 0.0, chosen=("evaluation.every_steps",))
    run = choose_num_steps(CONFIG, Costs(0.02, 0.0, {"evaluation": 70.0}), budget, 0.0)
    assert run.evaluation.every_steps == 500
    assert math.ceil(run.num_steps / 500) * 70 + run.num_steps * 0.02 <= 588


SMALL = ModelConfig(context_length=32, d_model=16, num_layers=1, num_heads=2, vocab_size=64)
PROBED = resolve(RunConfig(device="cpu", batch_size=2, model=SMALL))


class Steps:
    """In place of real steps: the first takes 64 seconds, each further one half of it."""

    sizes: list[tuple[int, ...]]

    def __init__(self, config: RunConfig) -> None:
        self._seconds = 128.0

    def take(self, batches: Iterable[Batch]) -> float:
        self.sizes += [batch.inputs.shape for batch in batches]
        self._seconds /= 2
        return self._seconds


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> type[Steps]:
    monkeypatch.setattr(Steps, "sizes", [], raising=False)
    monkeypatch.setattr(module, "Rehearsal", Steps)
    return Steps


@pytest.mark.parametrize(("num_warm_up", "median"), [(0, 32.0), (1, 16.0), (5, 1.0)])
def test_three_steps_are_timed_after_the_warm_up(
    steps: type[Steps], num_warm_up: int, median: float
) -> None:
    seconds, _ = time_steps(PROBED, num_warm_up)
    # One of next to nothing comes first, to load the libraries.
    assert steps.sizes[1:] == [(2, 32)] * (num_warm_up + 3)
    assert steps.sizes[0] != (2, 32)
    assert seconds == median


def test_a_step_of_a_probe_has_no_more_tokens_than_a_cpu_is_asked_for(steps: type[Steps]) -> None:
    config = PROBED.model_copy(update={"batch_size": 360})
    probe = probe_this_machine(config, 10**12)
    # 128 sequences would be 4,096 tokens; 120 is the next number that cuts the batch evenly.
    assert probe.micro_batch == 120
    assert steps.sizes[1:] == [(120, 32)] * 4
    assert probe.tokens_per_second == 120 * 32 / probe.seconds_per_step
