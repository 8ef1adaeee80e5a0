"""`groundup evaluate` on a run that was trained here."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from groundup.cli.main import main
from groundup.data.shards import open_shards
from groundup.files import read_json_lines


@pytest.fixture(autouse=True)
def in_the_folder(folder_of_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder_of_run)


def test_the_results_are_those_of_the_training(shell: Any) -> None:
    for record in read_json_lines("runs/small/metrics.jsonl"):
        if "validation_loss" in record:
            found = shell.json("evaluate", "small", "--checkpoint", str(record["step"]))
            assert found["loss"] == record["validation_loss"]
            assert found["perplexity"] == record["perplexity"]
            assert found["bits_per_byte"] == record["bits_per_byte"]


def test_a_run_its_checkpoint_and_its_split_are_named(shell: Any, small_config: Path) -> None:
    by_name, by_folder = shell.json("evaluate", "small"), shell.json("evaluate", "runs/small")
    assert by_name == by_folder and by_name["run"] == "runs/small" and by_name["step"] == 12
    best = shell.json("evaluate", "small", "--checkpoint", "best")
    assert best["loss"] <= by_name["loss"]
    shards = open_shards(small_config.parent / "shards", "validation")
    assert shell.json("evaluate", "small", "--whole")["tokens"] == shards.num_tokens - 1
    page = shell("evaluate", "small")
    for text in ("12", f"{by_name['loss']:.4f}", f"{by_name['bits_per_byte']:.4f}"):
        assert text in page


def test_data_that_are_not_the_runs_are_told(
    shell: Any, small_config: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    """Paths in settings are relative: what they mean must not depend on where one stands."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    shutil.copytree(small_config.parent, here)
    monkeypatch.chdir(here)
    flags = "--data.shards shards --data.tokenizer tokenizer.json --num-steps 2 --name one"
    shell("train", "--config", "small.yaml", *flags.split())
    expected = shell.json("evaluate", "one")["loss"]
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    prepare = ["data", "prepare", here / "stories.txt", "--tokenizer", here / "tokenizer.json"]
    shell(*prepare, "--validation-fraction", "0.2")
    assert shell.json("evaluate", "../here/runs/one")["loss"] == expected
    monkeypatch.chdir(here)
    shell(*prepare, "--overwrite", "--validation-fraction", "0.2")
    assert main(["evaluate", "one"]) == 0
    assert "does not contain the data that" in capsys.readouterr().err
    (tmp_path / "one.txt").write_text("one document")
    words = ["data", "prepare", tmp_path / "one.txt", "--validation-fraction", "0.001"]
    shell(*words, "--out", tmp_path / "few")
    told = shell.fails("evaluate", "one", "--shards", tmp_path / "few")
    assert "--validation-fraction 0.1 --overwrite" in told


def test_a_run_that_learned_in_float8_is_evaluated_in_float32_where_that_is_asked_for(
    shell: Any, folder_of_run: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder_of_run / "runs/small", tmp_path / "half")
    config = tmp_path / "half" / "config.yaml"
    text = config.read_text("utf-8")
    config.write_text(text.replace("precision: float32", "precision: float8"), "utf-8")
    found = shell.json("evaluate", tmp_path / "half", "--precision", "float32")
    assert found["loss"] == shell.json("evaluate", "small")["loss"]


def test_text_and_tasks_are_measured_together(
    shell: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = '{"sentence_good": "They were glad.", "sentence_bad": "They was glad."}\n'
    (tmp_path / "pairs.jsonl").write_text(pair * 3)
    long = [{"context": "Anna saw " * n, "choices": ["a fox.", "it."]} for n in range(100, 300)]
    lines = [json.dumps(one | {"answer": n % 2}) for n, one in enumerate(long)]
    (tmp_path / "long.jsonl").write_text("\n".join(lines))
    (tmp_path / "text").mkdir()
    (tmp_path / "text/one.txt").write_text("The fox sat. It was glad. " * 5)
    (tmp_path / "text/more.jsonl").write_text('{"body": "Anna ran."}\n{"body": "Ben ran."}\n')
    words = ["evaluate", "small", tmp_path / "text", "--field", "body", "--tasks"]
    words += [tmp_path / "long.jsonl", tmp_path / "pairs.jsonl"]
    found, page = shell.json(*words), shell(*words)
    assert (found["documents"], found["bytes"]) == (3, 147) and found["tokens"] > 100
    nats = found["bits_per_byte"] * math.log(2) * found["bytes"]
    assert found["loss"] == pytest.approx(nats / found["tokens"])
    assert "147 B" in page and "bits per byte" in page
    assert list(found["tasks"]) == ["long", "pairs"]
    who, pairs = found["tasks"].values()
    assert who["questions"] == who["cut"] == 200 and pairs["accuracy"] in (0, 1)
    low, high = who["interval"]
    assert low < who["accuracy"] < high and pairs["chance"] == 0.5
    assert f"{who['accuracy']:.4f}  {low:.4f}, {high:.4f}" in page and "mean" in page
    # Two runs read the text twice, and warn once.
    (tmp_path / "text/old.txt").write_text("Voilà, l'été. C'est déjà Noël. " * 9, "cp1252")
    capsys.readouterr()
    assert main(["evaluate", "small", "runs/small", str(tmp_path / "text")]) == 0
    assert capsys.readouterr().err.count("read as cp1252") == 1
