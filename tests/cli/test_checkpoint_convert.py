"""`groundup checkpoint convert`: one file and back, and what is read meanwhile."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from groundup.cli.main import main


@pytest.fixture
def run(folder_of_run: Path, tmp_path: Path) -> Path:
    """A copy of a trained run."""
    return Path(shutil.copytree(folder_of_run / "runs" / "small", tmp_path / "run"))


def files_of(run: Path) -> dict[str, bytes]:
    newest = sorted((run / "checkpoints").iterdir())[-1]
    return {path.name: path.read_bytes() for path in newest.glob("*.safetensors")}


def test_a_checkpoint_goes_into_shards_and_back(run: Path, shell: Any) -> None:
    before = files_of(run)
    said = shell("generate", str(run), "--prompt", "a", "--max-tokens", "4", "--seed", "0")
    text = shell("checkpoint", "convert", str(run), "--to", "sharded", "--num-shards", "3")
    assert "model_00000.safetensors, model_00001.safetensors, model_00002.safetensors" in text
    assert files_of(run).keys() == {
        f"{kind}_0000{rank}.safetensors" for kind in ("model", "optimizer") for rank in range(3)
    }
    again = shell("generate", str(run), "--prompt", "a", "--max-tokens", "4", "--seed", "0")
    assert again == said
    assert "model.safetensors" in shell("checkpoint", "convert", str(run), "--to", "plain")
    assert files_of(run) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "sharded", "--num-shards", "0"], "--num-shards must be at least 1"),
        (["--to", "plain", "--checkpoint", "77"], "has no checkpoint of step 77"),
        (["--to", "other"], "other"),
    ],
)
def test_what_cannot_be_converted_gets_a_sentence(
    run: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    before = files_of(run)
    assert main(["checkpoint", "convert", str(run), *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1
    assert files_of(run) == before
