"""Trials share compiled code where the installation keeps none."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from groundup.experiments.runner import Command
from groundup.experiments.slots import shared_bytecode
from groundup.experiments.sweep import run_sweep

HAS_CACHE = (
    "import json, sys; sys.stdout.write(str(bool(json.__cached__) and __import__('os').path"
    ".exists(json.__cached__)))"
)


def run_python(code: str, environment: dict[str, str]) -> str:
    words = [sys.executable, "-c", code]
    return subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def without_bytecode(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in a container that was made without any and forbids to write it."""
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "none"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "none"))


@pytest.mark.usefixtures("without_bytecode")
def test_what_one_process_compiled_is_there_for_the_next() -> None:
    assert run_python(HAS_CACHE, dict(os.environ)) == "False"
    with shared_bytecode() as variables:
        environment = {**os.environ, **variables}
        run_python("import json", environment)
        assert run_python(HAS_CACHE, environment) == "True"
        folder = Path(variables["PYTHONPYCACHEPREFIX"])
        assert folder.stat().st_mode & 0o077 == 0
    assert not folder.exists()


@pytest.mark.usefixtures("without_bytecode")
def test_trials_share_it(make_spec: Any, metrics_only: Command, tmp_path: Path) -> None:
    spec = make_spec(grid={"optimizer.learning_rate": [0.001, 0.01]})
    run_sweep(spec, tmp_path / "small", command=metrics_only)
    told = {file.read_text() for file in (tmp_path / "small").glob("runs/*/bytecode.txt")}
    (folder,) = told
    assert "groundup-bytecode-" in folder and not Path(folder).exists()


def test_nothing_is_changed_where_bytecode_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "new"))
    with shared_bytecode() as variables:
        assert variables == {}


def test_a_place_that_takes_no_files_keeps_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "file" / "inside"))
    with shared_bytecode() as variables:
        assert variables["PYTHONPYCACHEPREFIX"]
