"""What this machine lacks is refused in one line with the way out, before anything is done."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from groundup.cli.main import main
from groundup.training import execution

BFLOAT16 = "precision is bfloat16, but this CPU is slow at it: use --precision float32"
WITHOUT_CUDA = "is built without CUDA: install a CUDA build"
UNKNOWN = "device is 'foo', but must be auto, cpu, cuda, cuda:N or mps"


@pytest.fixture(autouse=True)
def a_bare_machine(
    folder_of_run: Path, small_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder_of_run, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_bytes(small_config.read_bytes())
    for name, settings in {"half": {"precision": "bfloat16"}, "gpu": {"device": "cuda"}}.items():
        sweep = {"name": name, "base": "small.yaml", "settings": settings}
        Path(f"{name}.yaml").write_text(yaml.safe_dump(sweep), encoding="utf-8")
    monkeypatch.setattr(execution, "why_no_bfloat16", lambda: "this CPU is slow at it")
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


TRAIN = ["train", "--config", "small.yaml", "--name", "new"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([*TRAIN, "--precision", "bfloat16"], BFLOAT16),
        (
            [*TRAIN, "--precision", "float8"],
            "device is cpu, and float8 is for CUDA",
        ),
        (["generate", "small", "--precision", "bfloat16"], BFLOAT16),
        (["serve", "small", "--port", "0", "--precision", "bfloat16"], BFLOAT16),
        (["evaluate", "small", "--precision", "bfloat16"], BFLOAT16),
        (["plan", "--preset", "quickstart", "--probe", "--precision", "bfloat16"], BFLOAT16),
        (
            ["plan", "--preset", "quickstart", "--device", "cpu", "--precision", "bfloat16"],
            "has no bfloat16 of its own: plan with --precision float32",
        ),
        (["sweep", "half.yaml"], BFLOAT16),
        (["sweep", "gpu.yaml"], WITHOUT_CUDA),
        ([*TRAIN, "--device", "cuda"], WITHOUT_CUDA),
        ([*TRAIN, "--device", "cuda:1"], WITHOUT_CUDA),
        ([*TRAIN, "--device", "mps"], "is built without MPS: it takes a Mac with Apple silicon"),
        ([*TRAIN, "--device", "foo"], UNKNOWN),
        (["generate", "small", "--device", "cuda"], WITHOUT_CUDA),
        (["generate", "small", "--device", "foo"], UNKNOWN),
        (["evaluate", "small", "--device", "cuda"], WITHOUT_CUDA),
        (["evaluate", "small", "--device", "foo"], UNKNOWN),
        (["serve", "small", "--port", "0", "--device", "foo"], UNKNOWN),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_it_is_one_line(shell: Any, words: list[str], complaint: str) -> None:
    assert complaint in shell.fails(*words)
    assert not Path("runs/new").exists()
    assert not Path("sweeps/half/runs").exists() and not Path("sweeps/gpu/runs").exists()


@pytest.mark.parametrize("precision", ["bfloat16", "float8"])
def test_a_run_in_bfloat16_is_evaluated_in_float32_where_that_is_asked_for(
    capsys: pytest.CaptureFixture[str], precision: str
) -> None:
    """So is one that learned in float8, whose evaluations were in bfloat16."""
    config = Path("runs/small/config.yaml")
    text = config.read_text("utf-8").replace("precision: float32", f"precision: {precision}")
    config.write_text(text, "utf-8")
    assert main(["evaluate", "small"]) == 2
    assert BFLOAT16 in capsys.readouterr().err
    assert main(["evaluate", "small", "--precision", "float32"]) == 0
