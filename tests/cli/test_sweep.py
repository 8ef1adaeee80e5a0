"""`groundup sweep` with real runs: what it prints, and that a kill costs nothing."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groundup.cli.main import main
from groundup.experiments.sweep_folder import SweepFolder
from groundup.experiments.trials import TrialRecord
from groundup.files import read_json_lines
from groundup.training.verify import compare_runs


@pytest.fixture(autouse=True)
def in_a_folder(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # For processes that are started from the new folder.
    monkeypatch.setenv("PYTHONPATH", str(repository / "src"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)


def test_a_sweep_of_which_every_trial_failed_is_no_success(
    write_sweep: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    spec = write_sweep(grid={"start_from": ["nowhere"]})
    assert main(["sweep", spec]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: all 1 trials of sweeps/small failed, the last one with: ")
    assert error.endswith("the same command tries them again")
    # One that came to its end is a result, whatever became of the others.
    SweepFolder("sweeps/small").add_record(TrialRecord("other", "other", "finished", 0))
    assert main(["sweep", spec]) == 0


@pytest.mark.parametrize(
    ("values", "words", "complaint"),
    [
        ({"grid": {"model.d_modell": [8]}}, [], "did you mean model.d_model?"),
        ({"grid": {"model.d_model": [17]}}, [], "trial d_model=17"),
        ({"grids": {}}, [], "unknown setting grids"),
        ({"minutes": 1}, [], "unknown setting minutes"),
        ({}, ["--jobs", "0"], "--jobs"),
    ],
)
def test_a_mistake_is_one_line_and_starts_nothing(
    write_sweep: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    values: dict[str, Any],
    words: list[str],
    complaint: str,
) -> None:
    assert main(["sweep", write_sweep(**values), *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and complaint in error and error.count("\n") == 1
    assert not Path("sweeps/small/runs").exists() or not list(Path("sweeps/small/runs").iterdir())


def test_a_killed_sweep_goes_on_where_it_was(
    write_sweep: Callable[..., str], capsys: pytest.CaptureFixture[str], hold: Any
) -> None:
    every = {f"{name}.every_steps": 20 for name in ("evaluation", "checkpoints", "logging")}
    # The kill comes in the middle of the second one; the first has ended before.
    variants = {"short": {"num_steps": 4}, "long": {"num_steps": 60}}
    spec = write_sweep(settings=every, variants=variants)
    Path("sweeps/small").mkdir(parents=True)
    ended = TrialRecord("short+seed=0", "short", "finished", 0, variants["short"])
    SweepFolder("sweeps/small").add_record(ended)
    held = hold("groundup.checkpoint:CheckpointFolder.save")
    process = subprocess.Popen(
        [sys.executable, "-m", "groundup", "sweep", spec],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    runs = Path("sweeps/small/runs")
    held.wait(process)
    process.kill()
    process.wait()
    held.release()
    assert len(list(read_json_lines("sweeps/small/trials.jsonl"))) == 1

    assert main(["sweep", spec]) == 0
    out, err = capsys.readouterr()
    assert "going on with long+seed=0" in err and "short" not in err
    assert "Results, best validation loss first" in out and not (runs / "short+seed=0").exists()
    records = list(read_json_lines("sweeps/small/trials.jsonl"))
    assert [record["status"] for record in records] == ["finished", "finished"]

    # What was killed and resumed is what an undisturbed run of these settings gives.
    settings = ["--config", "sweeps/small/trials/long+seed=0.yaml", "--runs-folder", "whole"]
    assert main(["train", *settings]) == 0
    assert compare_runs("whole/long+seed=0", runs / "long+seed=0").differences == []
