"""Where metrics go: the line a person reads and the meter behind it."""

import logging
import time
from pathlib import Path
from typing import Any

import pytest

from groundup.planner.parameters import training_flops_per_token
from groundup.training import metrics
from groundup.training.loop import train
from groundup.training.metrics import Callback, Metrics, show_record

from .conftest import MakeConfig


def test_the_console_line_has_what_a_person_wants() -> None:
    skipped = {"step": 7, "skipped": True, "reason": "the loss is nan", "loss": None}
    assert "step 7/9  skipped: the loss is nan" in show_record(skipped, 9)
    record = {"step": 100, "loss": 3.21, "learning_rate": 1e-3, "mfu": 0.298, "tokens": 6400}
    line = show_record(record, 2500)
    assert line == "step   100/2,500  loss 3.2100  learning rate 1.00e-03  mfu 29.8%"


def test_progress_is_shown_where_nobody_has_set_up_logging(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger("groundup"), "handlers", [])
    monkeypatch.setattr(logging.Logger, "hasHandlers", lambda logger: False)
    train(make_config("shown", {"num_steps": 2}))
    assert "step 2/2  loss" in capsys.readouterr().err


def test_the_meter_counts_training_alone(
    make_config: MakeConfig, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(metrics, "find_peak", lambda config: 1e9)
    config = make_config()
    state = build(config)
    state.wall_seconds, state.tokens = 50.0, 1000
    meter = Metrics(config, Path("none"), state, [])
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


def test_a_callback_gets_every_record_and_is_closed_whatever_happens(
    make_config: MakeConfig,
) -> None:
    calls: list[Any] = []

    class Tracker(Callback):
        def record(self, record: dict[str, Any]) -> None:
            calls.append(record["loss"])
            if "validation_loss" in record:
                raise ConnectionError

        def close(self) -> None:
            calls.append("closed")

    with pytest.raises(ConnectionError):
        train(make_config("run", {"num_steps": 4}), callbacks=[Tracker()])
    assert len(calls) == 4 and calls[-1] == "closed"
