"""Runs that fail before their first step: what they leave, and what the next try finds."""

from collections.abc import Callable
from pathlib import Path

import pytest

from groundup.errors import ConfigError, DataError, GroundupError
from groundup.model import TransformerLM
from groundup.training.config import RunConfig
from groundup.training.loop import train
from groundup.training.run_folder import RunFolder

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
