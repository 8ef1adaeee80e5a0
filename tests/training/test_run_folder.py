"""The run folder: contents, locking, what a resume accepts, what a failure leaves; and metrics."""

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from groundup.checkpoint import CheckpointFolder
from groundup.errors import CheckpointError, ConfigError, GroundupError
from groundup.model import TransformerLM
from groundup.planner.parameters import training_flops_per_token
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.tokenizer import Tokenizer
from groundup.training import metrics
from groundup.training.clock import Clock
from groundup.training.loop import train
from groundup.training.machine import Machine
from groundup.training.metrics import AfterStep, Callback, Metrics, show_record
from groundup.training.resolve import resolve

from .conftest import MakeConfig


def test_a_run_folder_has_everything_that_determined_the_run(finished: RunConfig) -> None:
    folder = RunFolder(finished.run_folder)
    names = "checkpoints config.yaml environment.json generation.json log.txt metrics.jsonl"
    names += " outcome.json tokenizer.json"
    assert sorted(path.name for path in folder.path.iterdir()) == names.split()
    resolved = resolve(finished, Machine.detect()).config
    assert folder.read_config() == resolved
    newest = CheckpointFolder(folder.checkpoints).newest()
    assert newest.state["settings"] == resolved.model_dump(mode="json")
    tokenizer = Tokenizer.load(finished.data.tokenizer)
    assert Tokenizer.load(folder.tokenizer_file).id == tokenizer.id
    environment = folder.read_environment()
    assert environment["seed"] == 0 and environment["num_threads"] == 1
    assert environment["data"]["tokenizer"] == tokenizer.id
    assert environment["data"]["content"].startswith("sha256:")
    assert {"torch", "numpy", "python", "groundup", "device", "git_commit"} <= environment.keys()
    assert "12 steps: done" in folder.log_file.read_text("utf-8")


def test_metrics_have_the_promised_keys(make_config: MakeConfig, records_of: Any) -> None:
    changes = {"checkpoints.keep_best": False, "checkpoints.keep_last": 2}
    config = make_config("run", {"logging.every_steps": 4, **changes})
    train(config)
    assert CheckpointFolder(config.run_folder / "checkpoints").steps() == [9, 12]
    records = records_of(config)
    assert [record["step"] for record in records] == [1, 4, 5, 8, 10, 12]
    logged = {"loss", "learning_rate", "gradient_norm", "tokens_per_second", "mfu", "memory_bytes"}
    for record in records:
        assert {"step", "wall_seconds", "tokens"} <= record.keys()
        assert record.keys() >= logged or record["step"] in (5, 10)
        # With keep_best off, checkpoints are not evaluated.
        has_validation = {"validation_loss", "perplexity", "bits_per_byte"} <= record.keys()
        assert has_validation == (record["step"] in (5, 10, 12))
    assert records[0]["tokens"] == 4 * 16 and records[-1]["tokens"] == 12 * 4 * 16
    assert 0 < records[-1]["mfu"] < 1 and records[-1]["memory_bytes"] > 1e6


@pytest.mark.parametrize("saving", [2, 5])
def test_the_best_checkpoint_is_the_best_saved_for_any_intervals(
    make_config: MakeConfig, records_of: Any, saving: int
) -> None:
    # Such a large learning rate that the loss rises during the run.
    changes: dict[str, Any] = {"checkpoints.every_steps": saving, "checkpoints.keep_last": 1}
    changes |= {"optimizer.learning_rate": 0.3, "evaluation.every_steps": 4}
    config = make_config("run", changes)
    train(config)
    records = records_of(config)
    losses = {r["step"]: r["validation_loss"] for r in records if "validation_loss" in r}
    saved = {step for step in range(1, 13) if step % saving == 0 or step == 12}
    assert set(losses) == saved | {4, 8, 12}
    checkpoints = CheckpointFolder(config.run_folder / "checkpoints")
    best = checkpoints.best()
    assert checkpoints.steps() == sorted({best.step, 12})
    assert best.step == min(saved, key=losses.__getitem__)
    assert best.metric == losses[best.step]


def test_existing_runs_are_not_overwritten_and_missing_ones_not_resumed(
    make_config: MakeConfig,
) -> None:
    logger = logging.getLogger("groundup")
    before = (logger.level, list(logger.handlers))
    config = make_config("run", {"num_steps": 3})
    with pytest.raises(ConfigError, match="has no run to resume"):
        train(config, resume=True)
    assert not config.run_folder.exists()
    train(config)
    folder = RunFolder(config.run_folder)
    metrics = folder.metrics_file.read_text()
    with pytest.raises(ConfigError, match=r"already has a run; .*--resume, or .*--name"):
        train(config)
    assert folder.metrics_file.read_text() == metrics
    with folder.claim(resume=True), pytest.raises(ConfigError, match="another process is training"):
        train(config, resume=True)
    train(config, resume=True)
    folder.config_file.unlink()
    with pytest.raises(ConfigError, match="already has a run"):
        train(config)
    assert (logger.level, logger.handlers) == before


def test_changed_settings_are_named_and_must_be_allowed(make_config: MakeConfig) -> None:
    before = {"micro_batch_size": 2, "model.dropout": 0.1}
    train(make_config("run", before), clock=Clock(stop_after=4))
    for changes, noun in (
        ({"optimizer.name": "sgd"}, r"optimizer\.name"),
        ({"model.d_model": 32}, r"model\.d_model: 16 -> 32"),
        ({"num_steps": 3}, "num_steps"),
    ):
        with pytest.raises(ConfigError, match=noun):
            train(make_config("run", before | changes), resume=True, allow_changes=True)
    after = {"optimizer.weight_decay": 0.03, "num_steps": 14, "model.dropout": 0.1}
    changed = make_config("run", after | {"micro_batch_size": 1})
    with pytest.raises(ConfigError) as caught:
        train(changed, resume=True)
    # Dropout samples random numbers per micro-batch.
    for change in ("num_steps: 12 -> 14", "weight_decay: 0.1 -> 0.03", "micro_batch_size: 2 -> 1"):
        assert change in str(caught.value)
    # A rejected resume changes nothing, not even the log.
    folder, has_outcome = RunFolder(changed.run_folder), []
    log = folder.log_file.read_text().splitlines()
    assert "after 4 steps: stopped" in log[-1] and not any("ERROR" in line for line in log)
    outcome = folder.read_outcome()
    assert outcome is not None and (outcome.state, outcome.step) == ("stopped", 4)
    assert folder.read_config().num_steps == 12
    look = AfterStep(lambda step, _: has_outcome.append(folder.outcome_file.exists()))
    summary = train(changed, resume=True, allow_changes=True, callbacks=[look])
    assert summary.steps == 14 and has_outcome == 10 * [False]
    outcome = folder.read_outcome()
    assert outcome is not None and (outcome.state, outcome.step) == ("finished", 14)
    assert outcome.cost["tokens"] == summary.tokens and outcome.cost["wall_seconds"] > 0
    assert "num_steps: 12 -> 14" in folder.log_file.read_text()
    groups = CheckpointFolder(folder.checkpoints).newest().optimizer_state()["param_groups"]
    assert 0.03 in {group["weight_decay"] for group in groups}
    # Without dropout, micro-batches and intervals may change.
    train(make_config("plain", {"micro_batch_size": 2}), clock=Clock(stop_after=4))
    free = {"micro_batch_size": 1, "logging.every_steps": 2}
    assert train(make_config("plain", free), resume=True).is_finished


def test_a_damaged_environment_does_not_skip_the_check_of_the_data(
    make_config: MakeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config()
    train(config, clock=Clock(stop_after=6))
    folder = RunFolder(config.run_folder)
    environment = folder.read_environment()
    folder.environment_file.write_text("{")
    with pytest.raises(ConfigError, match=r"environment\.json"):
        train(config, resume=True)
    changed = make_config("run", {"batch_size": 8})
    # The new batch size counts from the resumed step on.
    summary = train(changed, resume=True, allow_changes=True)
    assert summary.is_finished and summary.tokens == 6 * 4 * 16 + 6 * 8 * 16
    assert folder.read_environment()["data"] == environment["data"]
    # Another torch version is not an error.
    folder.environment_file.write_text(json.dumps({**environment, "torch": "1.0"}))
    train(changed, resume=True)
    assert "torch: 1.0 -> " in caplog.text
    assert folder.read_environment()["resumes"][0]["changes"][0].startswith("torch: 1.0")


def test_existing_files_survive_a_failed_start(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config("run", {"model.vocab_size": 299})
    config.run_folder.mkdir(parents=True)
    for name in ("notes.txt", "log.txt", "tokenizer.json"):
        (config.run_folder / name).write_text("mine\n")
    with pytest.raises(ConfigError, match="vocab_size 299 is too small"):
        train(config)
    for name in ("notes.txt", "log.txt", "tokenizer.json"):
        assert (config.run_folder / name).read_text().startswith("mine\n")
    assert not config.run_folder.joinpath("config.yaml").exists()


@pytest.mark.slow
def test_a_run_without_steps_can_be_started_again(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(GroundupError, match="out of memory"):
        patch.setattr(TransformerLM, "loss", fail)
        train(make_config())
    # The failed run's files stay, but do not prevent a new run.
    smaller = make_config("run", {"num_steps": 3, "batch_size": 2})
    folder = RunFolder(smaller.run_folder)
    assert folder.has_run() and "out of memory" in folder.log_file.read_text()
    assert train(smaller).is_finished and folder.read_config().batch_size == 2


def test_a_checkpoint_that_cannot_be_resumed_leaves_the_folder_alone(
    make_config: MakeConfig,
) -> None:
    config = make_config("run", {"num_steps": 3, "checkpoints.every_steps": 0})
    train(config)
    folder = RunFolder(config.run_folder)
    checkpoints = CheckpointFolder(folder.checkpoints, keep_last=1)
    newest = checkpoints.newest()
    checkpoints.save(4, newest.model_state(), newest.optimizer_state(), {})
    files = (folder.environment_file, folder.config_file, folder.metrics_file, folder.log_file)
    before = [file.read_bytes() for file in files]
    changes = {"num_steps": 5, "checkpoints.every_steps": 0}
    # First the newest checkpoint lacks its counters, then all weights are damaged.
    for _ in range(2):
        with pytest.raises(CheckpointError):
            train(make_config("run", changes), resume=True, allow_changes=True)
        assert [file.read_bytes() for file in files] == before
        for weights in folder.checkpoints.glob("*/model.safetensors"):
            weights.write_bytes(weights.read_bytes()[:-1] + b"x")


def test_the_console_line_has_the_main_metrics() -> None:
    skipped = {"step": 7, "skipped": True, "reason": "the loss is nan", "loss": None}
    assert "step 7/9  skipped: the loss is nan" in show_record(skipped, 9)
    record = {"step": 100, "loss": 3.21, "learning_rate": 1e-3, "mfu": 0.298, "tokens": 6400}
    line = show_record(record, 2500)
    assert line == "step   100/2,500  loss 3.2100  learning rate 1.00e-03  mfu 29.8%"


def test_progress_is_shown_without_logging_configured(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger("groundup"), "handlers", [])
    monkeypatch.setattr(logging.Logger, "hasHandlers", lambda logger: False)
    train(make_config("shown", {"num_steps": 2}))
    assert "step 2/2  loss" in capsys.readouterr().err


def test_the_meter_only_counts_training(
    make_config: MakeConfig, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(metrics, "find_peak", lambda config: 1e9)
    config = make_config()
    state = build(config)
    state.wall_seconds, state.tokens = 50.0, 1000
    meter = Metrics(config, RunFolder("none"), state, [])
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
