"""Timed runs: the schedule follows the clock, and a replay is bitwise identical."""

import io
import itertools
import math
import os
import signal
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from groundup.checkpoint import CheckpointFolder
from groundup.distributed.process_group import ONE_PROCESS
from groundup.runs.config import Interval, RunConfig
from groundup.runs.folder import RunFolder
from groundup.runtime import set_up_logging
from groundup.training import loop, verify
from groundup.training.clock import Clock, ReplayClock, StopRequest, Tick
from groundup.training.evaluation import Evaluator
from groundup.training.loop import train
from groundup.training.metrics import AfterStep
from groundup.training.step import Step
from groundup.training.verify import compare_runs, verify_resume

from .conftest import MakeConfig

TIMED = {
    "num_steps": None,
    "minutes": 5.0,
    "schedule.warmup_steps": 0.1,
    "evaluation.every_steps": 0.25,
    "checkpoints.every_steps": 0.2,
    "logging.every_steps": 0.05,
    "data.verify": False,
}


class FakeTime:
    """A fake clock that advances with the work done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        self.slowness: list[tuple[float, float]] = [(math.inf, 1.0)]
        self._monkeypatch = monkeypatch
        self.lasts(Step, "__call__", 2.0)
        self.lasts(Evaluator, "__call__", 5.0)
        self.lasts(CheckpointFolder, "save", 2.0)
        # For 12,208 parameters; more than needed, because the machine may be slow at the end.
        monkeypatch.setattr(loop, "_SAVED_BYTES_PER_SECOND", 3 * 4 * 12_208 / 6)

    def __call__(self) -> float:
        return self.now

    def is_slow(self, *slowness: tuple[float, float]) -> None:
        """Each is (seconds from now, slowdown of the machine until then)."""
        self.slowness = [(self.now + seconds, factor) for seconds, factor in slowness]

    def lasts(self, owner: Any, name: str, seconds: float) -> None:
        method = getattr(owner, name)

        def work(*words: Any, **options: Any) -> Any:
            factor = next(factor for until, factor in self.slowness if self.now < until)
            self.now += seconds * factor
            return method(*words, **options)

        self._monkeypatch.setattr(owner, name, work)


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    return FakeTime(monkeypatch)


@pytest.mark.parametrize(
    "slowness",
    [[(60.0, 10.0), (math.inf, 1.0)], [(150.0, 1.0), (math.inf, 2.0)]],
    ids=["slow start", "slow half"],
)
def test_a_timed_run_uses_exactly_its_time(
    make_config: MakeConfig,
    records_of: Any,
    fake_time: FakeTime,
    slowness: list[tuple[float, float]],
) -> None:
    config, began = make_config("run", TIMED), fake_time.now
    fake_time.is_slow(*slowness)
    summary = train(config, clock=Clock(now=fake_time))
    assert summary.is_finished
    if slowness[0][1] < 10:
        assert abs(fake_time.now - began - 300) < 0.02 * 300
    records = records_of(config)
    # Warm-up for a tenth of the time, then decay to the end.
    rates = [record["learning_rate"] for record in records if "learning_rate" in record]
    peak = rates.index(max(rates))
    assert 0 < peak <= 0.2 * len(rates) and rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] < 0.15 * max(rates)
    progress = [value for record in records for value in record["step_progress"]]
    assert len(progress) == summary.steps and progress == sorted(progress)
    evaluated = [record["step"] for record in records if "validation_loss" in record]
    assert len(evaluated) >= 5 and evaluated[-1] == summary.steps


def test_a_replay_is_bitwise_identical_with_and_without_a_kill(
    make_config: MakeConfig, fake_time: FakeTime
) -> None:
    changes = {**TIMED, "minutes": 1.5, "optimizer.ema_fraction": 0.1, "model.dropout": 0.1}
    changes |= {"multi_token_weight": 0.3}
    whole, killed = make_config("whole", changes), make_config("killed", changes)
    fake_time.is_slow((40.0, 3.0), (math.inf, 1.0))
    steps = train(whole, clock=Clock(now=fake_time)).steps
    file = RunFolder(whole.run_folder).metrics_file

    def kill(step: int, progress: float) -> None:
        if step == steps // 2 + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(killed, callbacks=[AfterStep(kill)], clock=ReplayClock(file))
    summary = train(killed, resume=True, clock=ReplayClock(file))
    assert summary.is_finished and summary.steps == steps
    assert compare_runs(whole.run_folder, killed.run_folder).differences == []


def test_a_resumed_run_continues_its_time(
    make_config: MakeConfig, records_of: Any, fake_time: FakeTime
) -> None:
    config, began = make_config("run", TIMED), fake_time.now
    stopped = train(config, clock=Clock(now=fake_time, stop_after=50))
    assert not stopped.is_finished
    worked = fake_time.now - began
    fake_time.now += 10_000
    began = fake_time.now
    summary = train(config, resume=True, clock=Clock(now=fake_time))
    assert summary.is_finished
    assert abs(worked + fake_time.now - began - 300) < 0.02 * 300
    assert train(config, resume=True, clock=Clock(now=fake_time)).steps == summary.steps
    progress = [value for record in records_of(config) for value in record["step_progress"]]
    assert len(progress) == summary.steps and progress == sorted(progress)
    assert max(b - a for a, b in itertools.pairwise(progress)) < 0.1


def test_skipped_steps_are_retried_after_a_resume(make_config: MakeConfig) -> None:
    config, now = make_config("run", {**TIMED, "minutes": 1.0}), 0.0
    clock, resumed = (Clock(now=lambda: now) for _ in range(2))
    clock.open(config, ONE_PROCESS, StopRequest(), {}, 0, lambda: 0.0)
    for step in range(1, 7):
        tick = clock.tick(step)
        now += 10
    assert tick is not None and tick.is_last and clock.is_done(6)
    assert len(clock.take_progress(6)["step_progress"]) == 6
    # The last three steps were skipped: the checkpoint is that of step 3.
    resumed.open(config, ONE_PROCESS, StopRequest(), clock.state(3), 3, lambda: 0.0)
    tick = resumed.tick(4)
    assert tick is not None and tick.position == tick.progress == 1
    assert resumed.take_progress(4) == {"step_progress": [1.0]}


def test_a_signal_during_printing_stops_the_run_normally(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Disturbed(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            if stop.signal is None:
                os.kill(os.getpid(), signal.SIGTERM)
            return len(data)

    stream = io.TextIOWrapper(io.BufferedWriter(Disturbed()), write_through=True)
    monkeypatch.setattr(sys, "stderr", stream)
    set_up_logging()
    with StopRequest() as stop:
        print("step 1", file=sys.stderr, flush=True)
    assert stop.signal == signal.SIGTERM


@pytest.mark.parametrize(("num_steps", "steps"), [(20, range(20, 21)), (10_000, range(100, 140))])
def test_the_first_limit_reached_ends_a_run(
    make_config: MakeConfig, fake_time: FakeTime, num_steps: int, steps: range
) -> None:
    config = make_config("run", {**TIMED, "num_steps": num_steps})
    summary = train(config, clock=Clock(now=fake_time))
    assert summary.is_finished and summary.steps in steps


def test_verify_resume_replays_a_timed_run(
    make_config: MakeConfig, run_code: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("run", {**TIMED, "minutes": 0.2})
    train(config, clock=Clock(stop_after=2))
    forked = SimpleNamespace(run=lambda command, **_: run_code(*command[2:]))
    monkeypatch.setattr(verify, "subprocess", forked)
    assert verify_resume(config.run_folder, num_steps=4).differences == []


@pytest.mark.parametrize(
    ("settings", "due"),
    [
        ({"every_steps": 4}, [4, 8, 10]),
        ({"every_steps": 0}, [10]),
        ({"every_steps": 0.3}, [3, 6, 9, 10]),
        ({"every_steps": 0.001}, list(range(1, 11))),
    ],
)
def test_intervals_are_steps_or_fractions(settings: dict[str, Any], due: list[int]) -> None:
    interval = Interval(**settings)
    ticks = [Tick(step, step - 1, 1, 10, step == 10, step - 2) for step in range(1, 11)]
    assert [tick.step for tick in ticks if tick.is_due(interval)] == due


def test_fractions_of_earlier_versions_are_translated() -> None:
    config = RunConfig(
        schedule={"warmup_steps": None, "warmup_fraction": 0.1, "decay_fraction": 1.0},
        evaluation={"every_steps": 7, "every_fraction": 0.1},
        checkpoints={"every_steps": None, "every_fraction": 0.0},
    )
    steps = config.schedule.warmup_steps, config.evaluation.every_steps
    assert steps == (0.1, 7) and config.checkpoints.every_steps == 0
    assert config.schedule.decay_steps == pytest.approx(1)
