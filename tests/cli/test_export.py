"""`groundup export` and `groundup import huggingface` on a run that was trained here."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from groundup.cli.main import main
from groundup.generation import LanguageModel


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, small_config: Path) -> Path:
    """A folder with the run runs/small in it."""
    folder = tmp_path_factory.mktemp("export")
    words = ["--config", str(small_config), "--runs-folder", str(folder / "runs")]
    assert main(["train", *words]) == 0
    return folder


@pytest.fixture(autouse=True)
def in_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def test_a_trained_run_goes_out_and_comes_back(
    capsys: pytest.CaptureFixture[str], shell: Any, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert main(["export", "small", "--to", "huggingface", str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"wrote {out}: README.md, config.json")
    words = ["--name", "back", "--runs-folder", str(tmp_path)]
    assert f"groundup generate {tmp_path / 'back'}" in shell(
        "import", "huggingface", str(out), *words
    )
    models = (
        LanguageModel.load(run, device="cpu").model for run in ("runs/small", tmp_path / "back")
    )
    first, second = (model.state_dict() for model in models)
    assert all(torch.equal(first[name], second[name]) for name in first | second)


def test_the_card_has_the_figures_of_the_training(tmp_path: Path) -> None:
    assert main(["export", "small", str(tmp_path / "out"), "--to", "huggingface"]) == 0
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    lines = Path("runs/small/metrics.jsonl").read_text("utf-8").splitlines()
    record = next(one for line in reversed(lines) if "validation_loss" in (one := json.loads(line)))
    assert f"| validation loss (step 12) | {record['validation_loss']:.4f} |" in card
    assert f"| validation perplexity | {record['perplexity']:.3f} |" in card
    assert f"| validation bits per byte | {record['bits_per_byte']:.4f} |" in card
    environment = json.loads(Path("runs/small/environment.json").read_text("utf-8"))
    assert environment["data"]["content"] in card and "stories.txt" in card


def test_a_file_for_llama_cpp_and_its_options(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    out = str(tmp_path / "small.gguf")
    words = ["export", "runs/small", "--to", "gguf", out, "--dtype", "float16"]
    assert main([*words, "--checkpoint", "best"]) == 0
    assert main([*words, "--checkpoint", "8", "--force"]) == 0
    assert "| step | 8 |" in (tmp_path / "small.md").read_text("utf-8")


def test_mistakes_are_one_line(shell: Any, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    assert "run smal does not exist" in shell.fails("export", "smal", "--to", "huggingface", out)
    assert "--to" in shell.fails("export", "small", out)
    assert "onnx" in shell.fails("export", "small", "--to", "onnx", out)
    words = ["export", "small", "--to", "huggingface", out]
    assert "int4" in shell.fails(*words, "--dtype", "int4")
    assert "--checkpoint" in shell.fails(*words, "--checkpoint", "last")
    assert "no checkpoint of step 99" in shell.fails(*words, "--checkpoint", "99")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").touch()
    assert "holds notes.txt" in shell.fails(*words, "--force")
    words = ["import", "huggingface", str(tmp_path)]
    assert "--name" in shell.fails(*words)
    assert "config.json is missing" in shell.fails(*words, "--name", "taken")
    assert "exists" in shell.fails(*words, "--name", "small")
