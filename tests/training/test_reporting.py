"""Where metrics go: the line a person reads, the meter behind it, and the trackers."""

import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groundup.errors import MissingExtraError
from groundup.planner.flops import training_flops_per_token
from groundup.runs.config import RunConfig
from groundup.training.loop import train
from groundup.training.metrics import Meter, MetricsWriter, show_record

MakeConfig = Callable[..., RunConfig]

RECORD = {
    "step": 100,
    "wall_seconds": 12.0,
    "tokens": 6400,
    "loss": 3.21,
    "validation_loss": 3.3,
    "learning_rate": 1e-3,
    "gradient_norm": 0.5,
    "tokens_per_second": 2_640_000.0,
    "mfu": 0.298,
    "memory_bytes": 10,
}


def test_the_console_line_has_everything_a_person_wants() -> None:
    skipped = {"step": 7, "skipped": True, "reason": "the loss is nan", "loss": float("nan")}
    assert "step 7/9  skipped: the loss is nan" in show_record(skipped, 9)
    assert show_record(RECORD, 2500, seconds_left=3723) == (
        "step   100/2,500  loss 3.2100  validation loss 3.3000  learning rate 1.00e-03  "
        "gradient norm 0.500  2.64M tokens/s  MFU 29.8%  62.0 minutes left"
    )


def test_the_time_left_is_that_of_the_progress_to_come(
    make_config: MakeConfig,
    build: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = make_config()
    state = build(config)
    clock = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    writer = MetricsWriter(config, tmp_path / "metrics.jsonl", Meter(config, None, state))
    state.step = 4
    with caplog.at_level(logging.INFO, "groundup"):
        writer.write(state, {"loss": 3.0, "tokens_per_second": 6.4}, 0.25)
        clock[0] += 20
        writer.write(state, {"validation_loss": 3.0}, 0.5)
    assert caplog.messages == [
        "step  4/12  loss 3.0000  6 tokens/s",
        "step  4/12  validation loss 3.0000  40.0 s left",
    ]


def test_the_meter_counts_training_alone(
    make_config: MakeConfig, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    config = make_config()
    state = build(config)
    state.wall_seconds, state.tokens = 50.0, 1000
    meter = Meter(config, 1e9, state)
    clock[0] += 2
    with meter.pause():
        clock[0] += 7
    values = meter.read(3000)
    assert values["tokens_per_second"] == 1000.0
    flops = training_flops_per_token(config.model)
    assert values["mfu"] == pytest.approx(1000.0 * flops / 1e9, abs=1e-5)
    assert meter.wall_seconds == 59.0
    clock[0] += 1
    assert meter.read(3500)["tokens_per_second"] == 500.0


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_trackers_get_every_record(make_config: MakeConfig, tracked: list[Any], name: str) -> None:
    train(make_config("run", {"num_steps": 4, f"logging.{name}": True}))
    (run,) = tracked
    assert [step for step, _ in run.logged] == [1, 2, 3, 4]
    assert {"loss", "validation_loss"} <= run.logged[-1][1].keys() and run.is_finished
    assert "step" not in run.logged[-1][1]
    assert (run.options["project"], run.options["name"]) == ("groundup", "run")
    assert run.options["config"]["num_steps"] == 4


def test_tensorboard_finds_the_values_in_the_run_folder(make_config: MakeConfig) -> None:
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard is not installed",
    )
    changes = {"num_steps": 4, "logging.every_steps": 2, "evaluation.every_steps": 0}
    summary = train(make_config("run", {**changes, "logging.tensorboard": True}))
    found = events.EventAccumulator(str(summary.run_folder / "tensorboard")).Reload()
    losses = found.Scalars("loss")
    assert [event.step for event in losses] == [1, 2, 4]
    assert losses[-1].value == pytest.approx(summary.loss)
    (validation,) = found.Scalars("validation_loss")
    assert (validation.step, validation.value) == (4, pytest.approx(summary.validation_loss))


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("tensorboard", "torch.utils.tensorboard"),
        ("wandb", "wandb"),
        ("trackio", "trackio"),
    ],
)
def test_a_missing_package_names_its_extra(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    config = make_config("run", {f"logging.{name}": True})
    with pytest.raises(MissingExtraError, match=rf"logging\.{name}.*groundup\[{name}\]"):
        train(config)
    assert not (config.run_folder / "config.yaml").exists()


def test_a_tracker_that_fails_does_not_stop_the_run(
    make_config: MakeConfig, tracked: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert train(make_config("broken", {"logging.wandb": True})).is_finished
    assert tracked and caplog.text.count("no network") == 1
