"""How long the trials that are left are expected to take, on devices that only have a name here."""

from pathlib import Path
from typing import Any

import pytest

from groundup.experiments import expected_time, slots
from groundup.experiments.expected_time import expected_line, steps_left
from groundup.experiments.sweep import plan_trials
from groundup.experiments.trials import Trial

# Of the tiny base: twenty steps of two sequences of sixteen tokens, there and back.
FLOPS = 3 * 20 * 32 * (2 * (4 * 16 * 16 + 3 * 16 * 64 + 16 * 300) + 4 * 16 * 16)


@pytest.fixture
def one_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expected_time, "find_peak", lambda config: 1e6)


@pytest.fixture
def two_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "_cuda_devices", lambda: ["0", "1"])
    settled = {"device": "cuda", "precision": "bfloat16", "compile": "blocks"}
    settle = lambda config: config.model_copy(update=settled)  # noqa: E731
    monkeypatch.setattr(expected_time, "resolve_device", settle)
    monkeypatch.setattr(expected_time, "device_name", lambda config: "NVIDIA H200")
    monkeypatch.setattr(expected_time, "find_peak", lambda config: 1e6)


@pytest.fixture
def trials(make_spec: Any, tmp_path: Path) -> Any:
    def make(**changes: Any) -> list[Trial]:
        return plan_trials(make_spec(**changes), tmp_path)

    return make


@pytest.mark.usefixtures("one_rate")
def test_the_time_is_the_sum_of_what_train_expects_of_each(trials: Any) -> None:
    seconds = FLOPS / 5e5
    assert expected_line(trials(seeds=[0, 1, 2])) == (
        f"about {3 * seconds / 60:.1f} minutes of training for the 3 trials left, one after "
        f"another, {seconds:.1f} s each, at 50% of the 1e-06 TFLOP/s in float32 of one CPU of 1 "
        f"core (measured): less than a cent at $0.04 an hour; starting and evaluating comes on top"
    )
    only = expected_line(trials())
    assert only is not None
    assert only.startswith(f"about {seconds:.1f} s of training for the one trial left, at 50%")
    mixed = expected_line(trials(grid={"batch_size": [1, 2]}))
    assert mixed is not None and f", {seconds / 2:.1f} s to {seconds:.1f} s each, " in mixed


@pytest.mark.usefixtures("one_rate")
def test_jobs_shorten_it_as_far_as_there_are_cores(
    trials: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expected_time, "num_cores", lambda: 2)
    minutes = FLOPS / 5e5 / 60
    for jobs in (2, 4):
        line = expected_line(trials(seeds=[0, 1, 2, 3]), jobs)
        assert line is not None and f"{jobs} at once" in line
        assert line.startswith(f"about {2 * minutes:.1f} minutes of training for the 4 trials left")


@pytest.mark.usefixtures("two_h200")
def test_every_device_costs_what_it_costs(trials: Any) -> None:
    some = trials(seeds=[0, 1, 2, 3], settings={"device": "cuda", "num_steps": 20_000})
    seconds = 1_000 * FLOPS / 4e5
    line = expected_line(some)
    assert line is not None and "for the 4 trials left, 2 at once, " in line
    assert line.startswith(f"about {2 * seconds / 86400:.1f} days of training")
    assert " at 40% of the 1e-06 TFLOP/s in bfloat16 of one H200 (NVIDIA H200 data sheet" in line
    assert f": ${4 * seconds / 3600 * 4:,.0f} at $4.00 an hour; " in line
    assert expected_line(some, minutes=30) == (
        "60.0 minutes for the 4 trials left, 2 at once, 30 minutes each: $8.00 at $4.00 an hour"
    )
    # Three on two devices take two rounds, and four jobs do not make a device longer to rent.
    line = expected_line(some[:3], minutes=30)
    assert line is not None and line.startswith("60.0 minutes for the 3 trials left, 2 at once")
    line = expected_line(some, jobs=4, minutes=30)
    assert line is not None
    assert line.endswith("4 at once, 30 minutes each: $4.00 at $4.00 an hour")


def test_nothing_is_said_of_a_device_whose_rate_is_unknown(
    trials: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expected_time, "find_peak", lambda config: None)
    assert expected_line(trials()) is None


@pytest.mark.usefixtures("one_rate")
def test_a_trial_that_has_begun_has_only_its_last_steps_before_it(
    trials: Any, tmp_path: Path
) -> None:
    (only,) = trials()
    assert steps_left(only) == 20
    for step in (4, 16):
        folder = tmp_path / "runs" / only.name / "checkpoints" / f"step_{step:06}"
        folder.mkdir(parents=True)
        (folder / "state.json").touch()
    assert steps_left(only) == 4
    line = expected_line([only])
    assert line is not None and line.startswith(f"about {FLOPS / 5e5 / 5:.1f} s of training")
