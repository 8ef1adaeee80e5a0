"""Runs that are given a time: done within it, as by hand, and with nothing left of the probe."""

import gc
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from groundup.checkpoint import CheckpointFolder
from groundup.data.batches.loader import Batch
from groundup.errors import ConfigError
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.training import budget as module
from groundup.training import step as step_module
from groundup.training.budget import Rehearsal, TimeBudget
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

    def lasts(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, seconds: float) -> None:
        """Let a method take this long."""
        method = getattr(owner, name)

        def work(*words: Any, **options: Any) -> Any:
            self.now += seconds
            return method(*words, **options)

        monkeypatch.setattr(owner, name, work)


@pytest.mark.parametrize("keep_best", [True, False])
def test_a_timed_run_is_done_within_its_time(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, keep_best: bool
) -> None:
    """With every part of it, by a clock on which each takes the same time whenever it is done."""
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    clock.lasts(monkeypatch, step_module, "train_step", 1.0)
    clock.lasts(monkeypatch, Evaluator, "__call__", 5.0)
    clock.lasts(monkeypatch, CheckpointFolder, "save", 2.0)
    changes = {"evaluation.every_steps": 4, "checkpoints.every_steps": 3}
    config = make_config("run", {**changes, "checkpoints.keep_best": keep_best})
    began = clock.now
    summary = train(config, budget=TimeBudget(180.0, began))
    assert summary.is_finished
    # What is kept in reserve, and less than another step and all that may come with it.
    assert 180.0 * 0.96 - 8.0 < clock.now - began <= 180.0


@pytest.fixture
def slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that are really taken, and said to take a second each."""
    take = Rehearsal.take

    def take_slowly(self: Rehearsal, batches: Iterable[Batch]) -> float:
        taken = list(batches)
        take(self, taken)
        return float(len(taken))

    monkeypatch.setattr(Rehearsal, "take", take_slowly)


def half_a_minute(*chosen: str) -> TimeBudget:
    return TimeBudget(30.0, time.monotonic(), chosen)


def train_by_hand(config: RunConfig, name: str) -> TrainSummary:
    """The same run, its length given instead of measured."""
    chosen = RunFolder(config.run_folder).read_config()
    return train(chosen.model_copy(update={"name": name}))


@pytest.mark.usefixtures("slow_steps")
def test_a_timed_run_is_the_run_of_that_length(
    make_config: MakeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    def write_sample(model: Any, tokenizer: Any, prompt: str) -> str:
        torch.rand(3)
        return f" {prompt} again"

    config = make_config("timed", {"samples.every_steps": 4})
    torch.manual_seed(99)
    with caplog.at_level("INFO", "groundup"):
        summary = train(config, budget=half_a_minute(), write_sample=write_sample)
    chosen = RunFolder(config.run_folder).read_config()
    assert chosen.num_steps == summary.steps and summary.is_finished
    assert 12 < chosen.num_steps < 30
    assert chosen.schedule.warmup_steps == round(chosen.num_steps / 6)
    assert f"0.5 minutes: {chosen.num_steps} steps of 1.0 s (mean of 3)" in caplog.text
    assert "0.5 minutes" in RunFolder(config.run_folder).log_file.read_text()
    plain = train(chosen.model_copy(update={"name": "plain"}), write_sample=write_sample)
    assert compare_runs(summary.run_folder, plain.run_folder).differences == []
    assert not (summary.run_folder / ".timing").exists()


@pytest.mark.usefixtures("slow_steps")
@pytest.mark.parametrize(("max_steps", "expected"), [(5, range(5, 6)), (100, range(13, 30))])
def test_a_timed_run_ends_at_the_limit_that_comes_first(
    make_config: MakeConfig, max_steps: int, expected: range
) -> None:
    budget = TimeBudget(30.0, time.monotonic(), max_steps=max_steps)
    summary = train(make_config("limited"), budget=budget)
    assert summary.is_finished and summary.steps in expected


@pytest.mark.usefixtures("slow_steps")
def test_a_timed_run_resumes_like_any_other(make_config: MakeConfig) -> None:
    config = make_config("parted", {"evaluation.every_steps": 2})
    assert train(config, budget=half_a_minute("evaluation.every_steps"), stop_after=7).steps == 7
    chosen = RunFolder(config.run_folder).read_config()
    assert chosen.evaluation.every_steps == 2
    with pytest.raises(ConfigError, match="resume without --minutes"):
        train(chosen, budget=half_a_minute(), resume=True)
    assert train(chosen, resume=True).is_finished
    whole = train_by_hand(config, "whole")
    assert compare_runs(whole.run_folder, config.run_folder).differences == []


@pytest.mark.usefixtures("slow_steps")
def test_nothing_of_the_probe_is_kept(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def build_and_note(config: RunConfig) -> Any:
        state = build_state(config)
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
    train(make_config("run", {"num_steps": 3}), budget=half_a_minute())
    assert left == [False]


def test_a_budget_that_is_spent_leaves_no_run(make_config: MakeConfig) -> None:
    config = make_config("late")
    with pytest.raises(ConfigError, match=r"0\.5 minutes cannot hold"):
        train(config, budget=TimeBudget(30.0, time.monotonic() - 60))
    assert not RunFolder(config.run_folder).has_run()
    assert not Path(config.run_folder, ".timing").exists()
    assert train(config).is_finished
