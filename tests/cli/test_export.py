"""`groundup export` and `groundup import huggingface` on a run that was trained here."""

from pathlib import Path
from typing import Any

import pytest
import torch

from groundup.cli.main import main
from groundup.generation import LanguageModel


@pytest.fixture(autouse=True)
def in_the_folder(folder_of_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder_of_run)


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


def test_a_file_for_llama_cpp_and_its_options(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    out = str(tmp_path / "small.gguf")
    words = ["export", "runs/small", "--to", "gguf", out, "--dtype", "float16"]
    assert main([*words, "--checkpoint", "best"]) == 0
    assert main([*words, "--checkpoint", "8", "--force"]) == 0
