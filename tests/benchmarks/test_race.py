"""The race trains both recipes on the same text and says who leads."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from groundup.cli.main import main

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SMALL = "vocab_size=300 context_length=32 d_model=32 num_heads=2 num_layers=2 d_ff=64".split()


def test_both_recipes_learn_from_the_same_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (
        "data sample --megabytes 0.2 --out text.txt",
        "tokenizer train text.txt --vocab-size 300 --out tokenizer.json",
        "data prepare text.txt --tokenizer tokenizer.json --out shards --validation-fraction 0.1",
    ):
        assert main(command.split()) == 0
    config = str(REPOSITORY / "configs" / "train" / "speedrun.yaml")
    words = [str(REPOSITORY / "benchmarks" / "race.py"), config, "--seconds", "1", "--seeds", "0"]
    words += ["--rates", "1e-2", "--out", "race.json", "--set", "device=cpu", "batch_size=4"]
    words += [*(f"model.{one}" for one in SMALL), "data.shards=shards"]
    words += ["data.tokenizer=tokenizer.json", "evaluation.num_windows=16", "num_threads=1"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=600)
    shown = done.stdout
    assert done.returncode == 0, shown + done.stderr
    assert "groundup, 1 s against nanoGPT at 0.01, 1 s: " in shown
    # One seed names no winner.
    assert "no winner" in shown
    ours, theirs = json.loads((tmp_path / "race.json").read_text())["results"]
    for result in (ours, theirs):
        assert result["tokens"] % (4 * 32) == 0 and result["tokens"] > 0
        # Evenly likely ids would give ln 300 = 5.7.
        assert result["validation_loss"] < 5.5
        assert result["curve"][-1][0] <= result["tokens"]
    assert ours["settings"]["batch_size"] == 4
