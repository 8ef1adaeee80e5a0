"""The whole story through the command line: text, vocabulary, shards, a run that is killed and
goes on to the same bits, its figures, and text again."""

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from groundup.cli.main import main
from groundup.generation import LanguageModel
from groundup.tokenizer import Tokenizer
from groundup.training.verify import compare_runs

PROMPT = "Once upon a time"
SETTINGS = {
    "num_steps": 120,
    "batch_size": 4,
    "num_threads": 1,
    "device": "cpu",
    "model": {
        "vocab_size": 400,
        "context_length": 32,
        "d_model": 32,
        "num_layers": 2,
        "num_heads": 2,
        "qk_norm": True,
    },
    "optimizer": {"learning_rate": 0.003},
    "schedule": {"warmup_steps": 10},
    "evaluation": {"every_steps": 60, "num_windows": 8},
    "checkpoints": {"every_steps": 30},
    "samples": {"every_steps": 60, "max_tokens": 8},
}


@pytest.fixture(autouse=True)
def in_a_folder(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # For processes that are started from the new folder.
    monkeypatch.setenv("PYTHONPATH", str(repository / "src"))
    monkeypatch.chdir(tmp_path)


def groundup(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(words) == 0
    return capsys.readouterr().out


def kill_after_first_checkpoint(hold: Any, *words: str) -> None:
    """Start a training and end it for good as soon as it has something to go on from."""
    held = hold("groundup.checkpoint:CheckpointFolder.save")
    process = subprocess.Popen([sys.executable, "-m", "groundup", *words], stderr=subprocess.PIPE)
    held.wait(process)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    held.release()


@pytest.mark.usefixtures("steady")
def test_text_becomes_a_model_that_writes_text(
    capsys: pytest.CaptureFixture[str], hold: Any
) -> None:
    groundup(capsys, "data", "sample", "--megabytes", "0.1", "--out", "stories.txt")
    groundup(capsys, "tokenizer", "train", "stories.txt", "--vocab-size", "400")
    groundup(
        capsys, "data", "prepare", "stories.txt", "--validation-fraction", "0.1", "--out", "shards"
    )
    Path("run.yaml").write_text(yaml.safe_dump(SETTINGS), encoding="utf-8")

    groundup(capsys, "train", "--config", "run.yaml", "--name", "whole")
    parted = ["train", "--config", "run.yaml", "--name", "parted"]
    kill_after_first_checkpoint(hold, *parted)
    groundup(capsys, *parted, "--resume")
    comparison = compare_runs("runs/whole", "runs/parted")
    assert comparison.differences == [] and comparison.num_records >= 13

    figures = json.loads(groundup(capsys, "evaluate", "parted", "--whole", "--json"))
    assert figures["step"] == 120
    # Even odds among 400 tokens have a loss of 5.99.
    assert figures["loss"] < 5

    language_model = LanguageModel.load("runs/parted")
    assert language_model.tokenizer.id == Tokenizer.load("tokenizer.json").id
    text = language_model.generate(PROMPT, max_tokens=20, temperature=0.8, seed=1)
    flags = f"--max-tokens 20 --temperature 0.8 --seed 1 --device cpu --prompt '{PROMPT}'"
    for run in ("parted", "whole"):
        assert groundup(capsys, "generate", run, *shlex.split(flags)) == f"{PROMPT}{text}\n"
