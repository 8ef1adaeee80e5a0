"""What a person does with a run that is there: the journeys of going on."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from groundup.generation import LanguageModel
from groundup.interop import export_huggingface, import_huggingface


@pytest.fixture(autouse=True)
def in_a_copy(folder_of_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(folder_of_run, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def test_everyone_samples_as_the_run_says(shell: Any) -> None:
    file = Path("runs/small/generation.json")
    assert json.loads(file.read_text()) == {"temperature": 0.7, "top_p": 0.95}
    words = ("generate", "small", "--prompt", "The cat", "--max-tokens", "9")
    text = shell(*words)
    assert text == shell(*words, "--temperature", "0.7", "--top-p", "0.95")
    assert text != shell(*words, "--temperature", "1", "--top-p", "1")
    file.write_text('{"temperature": 0, "top_k": 7}')
    model = LanguageModel.load("runs/small")
    assert shell(*words) == "The cat" + model.generate("The cat", max_tokens=9) + "\n"
    assert shell(*words) == shell(*words, "--seed", "4") != shell(*words, "--temperature", "9")
    # An export and its import say the same.
    file.write_text('{"temperature": 0.6, "top_k": 7, "repetition_penalty": 1.1}')
    export_huggingface("runs/small", "out")
    import_huggingface("out", "again")
    model = LanguageModel.load("runs/small")
    assert LanguageModel.load("runs/again").sampler == model.sampler and model.sampler.top_k == 7
    file.write_text('{"temperature": "hot"}')
    assert "generation.json" in shell.fails(*words) and "hot" in shell.fails(*words)
