"""Runs that are given a time: done within it, as by hand, and with nothing left of the probe."""

import gc
import math
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from groundup.checkpoint import CheckpointFolder
from groundup.errors import ConfigError
from groundup.runs.config import RunConfig, with_num_steps
from groundup.runs.folder import RunFolder
from groundup.training import budget as module
from groundup.training import loop, metrics, refit
from groundup.training import step as step_module
from groundup.training.budget import TimeBudget
from groundup.training.evaluation import Evaluator
from groundup.training.loop import TrainSummary, train
from groundup.training.setup import build_state
from groundup.training.verify import compare_runs

MakeConfig = Callable[..., RunConfig]


class Clock:
    """A clock that goes on by what is done, not by itself."""

    now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic

    def __init__(self) -> None:
        self.slowness = [(math.inf, 1.0)]
        """Until a time everything takes so many times as long."""

    def is_slow(self, *slowness: tuple[float, float]) -> None:
        """Each is how many seconds from now, and how slow the machine is until then."""
        self.slowness = [(self.now + seconds, factor) for seconds, factor in slowness]

    def lasts(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, seconds: float) -> None:
        """Let a method take this long."""
        method = getattr(owner, name)

        def work(*words: Any, **options: Any) -> Any:
            factor = next(factor for until, factor in self.slowness if self.now < until)
            self.now += seconds * factor
            return method(*words, **options)

        monkeypatch.setattr(owner, name, work)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Steps take a second each, and all else nothing."""
    clock = Clock()
    for user in (module, refit, metrics):
        monkeypatch.setattr(user, "time", clock)
    clock.lasts(monkeypatch, step_module, "train_step", 1.0)
    return clock


@pytest.mark.parametrize("keep_best", [True, False])
def test_a_timed_run_is_done_within_its_time(
    make_config: MakeConfig,
    monkeypatch: pytest.MonkeyPatch,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    keep_best: bool,
) -> None:
    """With every part of it, by a clock on which each takes the same time whenever it is done."""
    caplog.set_level("INFO", "groundup")
    clock.lasts(monkeypatch, Evaluator, "__call__", 5.0)
    clock.lasts(monkeypatch, CheckpointFolder, "save", 2.0)
    changes = {"evaluation.every_steps": 4, "checkpoints.every_steps": 3}
    config = make_config("run", {**changes, "checkpoints.keep_best": keep_best})
    began = clock.now
    summary = train(config, budget=TimeBudget(180.0, began))
    assert summary.is_finished
    # What is kept in reserve, and less than another step and all that may come with it.
    assert 180.0 * 0.96 - 8.0 < clock.now - began <= 180.0
    assert " instead of " not in caplog.text


# Four steps.
SLOW_PROBE = ((40.0, 10.0), (math.inf, 1.0))


@pytest.mark.parametrize(
    "slowness",
    [
        # The probe alone, the beginning of the run as well, all of the run, its second half.
        ((70.0, 10.0), (math.inf, 1.0)),
        ((150.0, 10.0), (math.inf, 1.0)),
        ((10.0, 1.0), (math.inf, 10.0)),
        ((300.0, 1.0), (math.inf, 2.0)),
    ],
)
def test_a_run_gets_another_length_where_its_time_was_measured_wrong(
    make_config: MakeConfig,
    monkeypatch: pytest.MonkeyPatch,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    slowness: tuple[tuple[float, float], ...],
) -> None:
    caplog.set_level("INFO", "groundup")
    clock.lasts(monkeypatch, Evaluator, "__call__", 2.0)
    clock.lasts(monkeypatch, CheckpointFolder, "save", 1.0)
    clock.is_slow(*slowness)
    config, began = make_config("run"), clock.now
    summary = train(config, budget=TimeBudget(600.0, began))
    assert 0.87 * 600.0 < clock.now - began < 1.03 * 600.0
    # The folder has the new length, and its own fraction of it each setting.
    chosen = RunFolder(config.run_folder).read_config()
    assert f"{chosen.num_steps:,} steps instead of " in caplog.text
    assert summary.is_finished and summary.steps == chosen.num_steps
    scaled = with_num_steps(config, chosen.num_steps)
    assert (chosen.schedule, chosen.evaluation) == (scaled.schedule, scaled.evaluation)


def test_a_new_length_keeps_to_the_limit_and_to_what_was_chosen(
    make_config: MakeConfig, clock: Clock
) -> None:
    clock.is_slow(*SLOW_PROBE)
    config = make_config("run", {"evaluation.every_steps": 7})
    budget = TimeBudget(300.0, clock.now, ("evaluation.every_steps",), max_steps=100)
    assert train(config, budget=budget).steps == 100
    chosen = RunFolder(config.run_folder).read_config()
    assert chosen.num_steps == 100 and chosen.evaluation.every_steps == 7


class Killed(Exception):
    """Ends a run with nothing saved."""


@pytest.mark.parametrize("steps_later", [0, 1, 30])
def test_a_run_with_a_new_length_resumes_exactly(
    make_config: MakeConfig,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    steps_later: int,
) -> None:
    changes = {"optimizer.average_over": 0.1, "schedule.name": "wsd", "model.dropout": 0.1}
    lengths: dict[int, int] = {}

    def kill(step: int, num_steps: int | None) -> None:
        lengths.setdefault(num_steps or 0, step)
        if len(lengths) == 2 and step == max(lengths.values()) + steps_later:
            raise Killed

    def train_in_time(name: str, **options: Any) -> RunConfig:
        # The probe is slow, and the run is fast.
        clock.is_slow(*SLOW_PROBE)
        config = make_config(name, changes)
        train(config, budget=TimeBudget(200.0, clock.now), **options)
        return config

    caplog.set_level("INFO", "groundup")
    whole = train_in_time("whole")
    assert caplog.text.count(" instead of ") == 1
    with pytest.raises(Killed):
        train_in_time("killed", progress=kill)
    killed = RunFolder(make_config("killed").run_folder)
    assert train(killed.read_config(), resume=True).is_finished
    assert killed.read_config().num_steps == RunFolder(whole.run_folder).read_config().num_steps
    assert compare_runs(whole.run_folder, killed.path).differences == []


@pytest.mark.parametrize(("owner", "name"), [(loop, "save_yaml"), (CheckpointFolder, "save")])
def test_a_new_length_that_cannot_be_stored_is_not_taken(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, clock: Clock, owner: Any, name: str
) -> None:
    clock.is_slow(*SLOW_PROBE)
    config = make_config("run", {"checkpoints.every_steps": 0, "evaluation.every_steps": 0})
    work, lengths = getattr(owner, name), set[int]()

    def fail(*words: Any, **options: Any) -> None:
        if RunFolder(config.run_folder).has_run():
            monkeypatch.setattr(owner, name, work)
            raise OSError(28, "No space left on device")
        work(*words, **options)

    def note(step: int, num_steps: int | None) -> None:
        if step == 2:
            monkeypatch.setattr(owner, name, fail)
        lengths.add(num_steps or 0)

    summary = train(config, budget=TimeBudget(200.0, clock.now), progress=note)
    # The next look tries it again.
    assert summary.is_finished and len(lengths) == 2
    assert RunFolder(config.run_folder).read_config().num_steps == summary.steps == max(lengths)


def half_a_minute(clock: Clock, *chosen: str) -> TimeBudget:
    return TimeBudget(30.0, clock.now, chosen)


def train_by_hand(config: RunConfig, name: str) -> TrainSummary:
    """The same run, its length given instead of measured."""
    chosen = RunFolder(config.run_folder).read_config()
    return train(chosen.model_copy(update={"name": name}))


def test_a_timed_run_is_the_run_of_that_length(
    make_config: MakeConfig, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def write_sample(model: Any, tokenizer: Any, prompt: str) -> str:
        torch.rand(3)
        return f" {prompt} again"

    config = make_config("timed", {"samples.every_steps": 4})
    torch.manual_seed(99)
    with caplog.at_level("INFO", "groundup"):
        summary = train(config, budget=half_a_minute(clock), write_sample=write_sample)
    chosen = RunFolder(config.run_folder).read_config()
    assert chosen.num_steps == summary.steps and summary.is_finished
    assert 12 < chosen.num_steps < 30
    assert chosen.schedule.warmup_steps == round(chosen.num_steps / 6)
    assert f"0.5 minutes: {chosen.num_steps} steps of 1.0 s (mean of 3)" in caplog.text
    assert "0.5 minutes" in RunFolder(config.run_folder).log_file.read_text()
    plain = train(chosen.model_copy(update={"name": "plain"}), write_sample=write_sample)
    assert compare_runs(summary.run_folder, plain.run_folder).differences == []
    assert not (summary.run_folder / ".timing").exists()


@pytest.mark.parametrize(("max_steps", "expected"), [(5, range(5, 6)), (100, range(13, 30))])
def test_a_timed_run_ends_at_the_limit_that_comes_first(
    make_config: MakeConfig, clock: Clock, max_steps: int, expected: range
) -> None:
    budget = TimeBudget(30.0, clock.now, max_steps=max_steps)
    summary = train(make_config("limited"), budget=budget)
    assert summary.is_finished and summary.steps in expected


def test_a_timed_run_resumes_like_any_other(make_config: MakeConfig, clock: Clock) -> None:
    config = make_config("parted", {"evaluation.every_steps": 2})
    budget = half_a_minute(clock, "evaluation.every_steps")
    assert train(config, budget=budget, stop_after=7).steps == 7
    chosen = RunFolder(config.run_folder).read_config()
    assert chosen.evaluation.every_steps == 2
    with pytest.raises(ConfigError, match=r"resume with --minutes 0\.5$"):
        train(config, budget=TimeBudget(60.0, clock.now), resume=True)
    # With the settings it was begun with, and with those it has.
    assert train(config, budget=budget, stop_after=8, resume=True).steps == 8
    assert train(chosen, resume=True).is_finished
    whole = train_by_hand(config, "whole")
    assert compare_runs(whole.run_folder, config.run_folder).differences == []


def test_a_time_does_not_change_the_length_of_a_run_without_one(
    make_config: MakeConfig, clock: Clock
) -> None:
    config = make_config("untimed")
    train(config, stop_after=2)
    with pytest.raises(ConfigError, match="resume without --minutes"):
        train(config, budget=half_a_minute(clock), resume=True)


def test_nothing_of_the_probe_is_kept(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    made: list[Any] = []

    def build_and_note(config: RunConfig, **options: Any) -> Any:
        state = build_state(config, **options)
        made.append(weakref.ref(state.model))
        return state

    monkeypatch.setattr(module, "build_state", build_and_note)
    left: list[bool] = []
    choose = module.choose_num_steps

    def choose_and_look(*words: Any) -> RunConfig:
        gc.collect()
        left.extend(model() is not None for model in made)
        return choose(*words)

    monkeypatch.setattr(module, "choose_num_steps", choose_and_look)
    train(make_config("run", {"num_steps": 3}), budget=half_a_minute(clock))
    assert left == [False]


def test_a_budget_that_is_spent_leaves_no_run(make_config: MakeConfig) -> None:
    config = make_config("late")
    with pytest.raises(ConfigError, match=r"0\.5 minutes cannot hold"):
        train(config, budget=TimeBudget(30.0, time.monotonic() - 60))
    assert not RunFolder(config.run_folder).has_run()
    assert not Path(config.run_folder, ".timing").exists()
    assert train(config).is_finished
