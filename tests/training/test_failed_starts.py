"""Runs that fail before their first step: what they leave, and what the next try finds."""

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groundup.checkpoint import CheckpointFolder
from groundup.errors import CheckpointError, ConfigError, DataError, GroundupError
from groundup.model import TransformerLM
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.training.loop import train

MakeConfig = Callable[..., RunConfig]


def test_a_run_that_never_began_leaves_nothing(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config("run", {"data.shards": str(tmp_path / "nowhere")})
    with pytest.raises(DataError, match="nowhere"):
        train(config)
    assert list(tmp_path.iterdir()) == []


def test_only_what_the_failed_run_made_goes(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config("run", {"model.vocab_size": 299})
    config.run_folder.mkdir(parents=True)
    for name in ("notes.txt", "log.txt", "tokenizer.json"):
        (config.run_folder / name).write_text("mine\n")
    with pytest.raises(ConfigError, match="vocab_size 299 is too small"):
        train(config)
    found = {path.name: path.read_text() for path in config.run_folder.iterdir()}
    assert found.keys() == {"notes.txt", "log.txt", "tokenizer.json"}
    assert found["notes.txt"] == found["tokenizer.json"] == "mine\n"
    assert found["log.txt"].startswith("mine\n")


def test_a_run_that_took_no_step_is_begun_again(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(GroundupError, match="out of memory"):
        patch.setattr(TransformerLM, "loss", fail)
        train(make_config())
    # It stays to be looked at, and stands in nobody's way.
    smaller = make_config("run", {"num_steps": 3, "batch_size": 2})
    folder = RunFolder(smaller.run_folder)
    assert folder.has_run() and "out of memory" in folder.log_file.read_text()
    assert train(smaller).is_finished and folder.read_config().batch_size == 2


def test_settings_that_somebody_put_there_are_not_overwritten(make_config: MakeConfig) -> None:
    config = make_config()
    config.run_folder.mkdir(parents=True)
    RunFolder(config.run_folder).config_file.write_text("num_steps: 12\n")
    with pytest.raises(ConfigError, match="already holds a run"):
        train(config)
    assert [path.name for path in config.run_folder.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize("fault", ["damaged weights", "no counters"])
def test_a_checkpoint_that_cannot_be_resumed_leaves_folder_and_trackers_alone(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    opened: list[dict[str, Any]] = []
    module = types.ModuleType("wandb")
    monkeypatch.setattr(module, "init", lambda **options: opened.append(options), raising=False)
    monkeypatch.setitem(sys.modules, "wandb", module)
    config = make_config("run", {"num_steps": 3, "checkpoints.every_steps": 0})
    train(config)
    folder = RunFolder(config.run_folder)
    checkpoints = CheckpointFolder(folder.checkpoints, keep_last=1)
    if fault == "no counters":
        newest = checkpoints.newest()
        checkpoints.save(4, newest.model_state(), newest.optimizer_state(), {})
    else:
        weights = folder.checkpoints / "step_000003" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    files = (folder.environment_file, folder.config_file, folder.metrics_file, folder.log_file)
    before = [file.read_bytes() for file in files]
    tracked = make_config(
        "run", {"num_steps": 3, "checkpoints.every_steps": 0, "logging.wandb": True}
    )
    with pytest.raises(CheckpointError):
        train(tracked, resume=True, allow_changes=True)
    assert [file.read_bytes() for file in files] == before and opened == []
