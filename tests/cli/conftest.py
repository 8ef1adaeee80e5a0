"""A small corpus with its tokenizer and shards, and the settings of a run that takes a second."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from groundup.cli.main import main
from groundup.data.prepare import prepare
from groundup.data.samples import write_sample_corpus
from groundup.tokenizer import Tokenizer


class Shell:
    """Runs commands in this process and returns their output."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: object) -> str:
        """Return the output of a command that must succeed."""
        assert main(list(map(str, words))) == 0
        return self._capsys.readouterr().out

    def json(self, *words: object) -> Any:
        """Return the JSON that it prints, which must be its only output."""
        assert main([*map(str, words), "--json"]) == 0
        captured = self._capsys.readouterr()
        assert captured.err == ""
        return json.loads(captured.out)

    def fails(self, *words: object, status: int = 2) -> str:
        """Return the error line, the only output of a command that must fail."""
        self._capsys.readouterr()
        assert main(list(map(str, words))) == status
        captured = self._capsys.readouterr()
        assert captured.out == "", captured.out
        assert captured.err.startswith("error: ") and captured.err.count("\n") == 1, captured.err
        return captured.err.removeprefix("error: ").removesuffix("\n")


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture(scope="session")
def small_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Settings of a tiny model, next to 60 kB of stories and a tokenizer of 300 tokens."""
    folder = tmp_path_factory.mktemp("small")
    text, tokenizer_file = folder / "stories.txt", folder / "tokenizer.json"
    write_sample_corpus(text, megabytes=0.06, seed=0)
    Tokenizer.train(text, 300).save(tokenizer_file)
    prepare([text], Tokenizer.load(tokenizer_file), folder / "shards", validation_fraction=0.1)
    sizes = {"vocab_size": 300, "context_length": 16, "d_model": 16, "num_layers": 1}
    settings: dict[str, Any] = {"name": "small", "num_steps": 12, "batch_size": 2}
    settings |= {
        "num_threads": 1,
        "device": "cpu",
        "model": sizes | {"num_heads": 2},
        "data": {"shards": str(folder / "shards"), "tokenizer": str(tokenizer_file)},
        "schedule": {"warmup_steps": 2},
        "evaluation": {"every_steps": 4, "num_windows": 4},
        "checkpoints": {"every_steps": 4},
        "logging": {"every_steps": 2},
    }
    config = folder / "small.yaml"
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return config


@pytest.fixture(scope="session")
def folder_of_run(tmp_path_factory: pytest.TempPathFactory, small_config: Path) -> Path:
    """A folder with the finished run runs/small; tests that change it copy it first."""
    folder = tmp_path_factory.mktemp("trained")
    words = ["--config", str(small_config), "--runs-folder", str(folder / "runs")]
    assert main(["train", *words]) == 0
    return folder


@pytest.fixture
def write_sweep(small_config: Path, tmp_path: Path) -> Callable[..., str]:
    """`write_sweep(grid=…)` writes a sweep file based on the small run."""

    def write(**values: Any) -> str:
        file = tmp_path / "sweep.yaml"
        sweep = {"name": "small", "base": str(small_config), **values}
        file.write_text(yaml.safe_dump(sweep, sort_keys=False), "utf-8")
        return str(file)

    return write
