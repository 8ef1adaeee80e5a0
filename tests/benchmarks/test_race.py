"""The race trains both recipes on the same text and says who leads."""

import contextlib
import json
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from groundup.cli.main import main

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SMALL = "vocab_size=300 context_length=32 d_model=32 num_heads=2 num_layers=2 d_ff=64".split()


def apply(run: Any, arguments: Any) -> Any:
    """What a process of its own does, which takes ten times as long to start as its work does."""
    return pickle.loads(pickle.dumps(run(*pickle.loads(pickle.dumps(arguments)))))


@pytest.mark.usefixtures("one_thread")
def test_both_recipes_learn_from_the_same_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (
        "data sample --megabytes 0.2 --out text.txt",
        "tokenizer train text.txt --vocab-size 300 --out tokenizer.json",
        "data prepare text.txt --tokenizer tokenizer.json --out shards --validation-fraction 0.1",
    ):
        assert main(command.split()) == 0
    config = str(REPOSITORY / "configs" / "train" / "speedrun.yaml")
    words = ["race.py", config, "--seconds", "0.5", "--seeds", "0"]
    words += ["--rates", "1e-2", "--out", "race.json", "--set", "device=cpu", "batch_size=4"]
    words += [*(f"model.{one}" for one in SMALL), "data.shards=shards"]
    words += ["data.tokenizer=tokenizer.json", "evaluation.num_windows=16", "num_threads=1"]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    import race

    pool = contextlib.nullcontext(SimpleNamespace(apply=apply))
    here = SimpleNamespace(get_context=lambda kind: SimpleNamespace(Pool=lambda size: pool))
    monkeypatch.setattr(race, "multiprocessing", here)
    precision = torch.get_float32_matmul_precision()
    assert race.main() == 0
    torch.set_float32_matmul_precision(precision)
    shown = capsys.readouterr().out
    assert "groundup, 0.5 s against nanoGPT at 0.01, 0.5 s: " in shown
    # One seed names no winner.
    assert "no winner" in shown
    ours, theirs = json.loads((tmp_path / "race.json").read_text())["results"]
    for result in (ours, theirs):
        assert result["tokens"] % (4 * 32) == 0 and result["tokens"] > 0
        # Evenly likely ids would give ln 300 = 5.7.
        assert result["validation_loss"] < 5.5
        assert result["curve"][-1][0] <= result["tokens"]
    assert ours["settings"]["batch_size"] == 4
