"""`groundup scaling` as typed, with trials that only write metrics: its tables, file and errors."""

import functools
from pathlib import Path

import pytest

from groundup.cli.main import main
from groundup.experiments import sweep
from groundup.experiments.runner import Command
from groundup.experiments.sweep import run_isoflop
from groundup.files import read_json_lines

# The trainer without a model finds width 16 best, whatever the budget.
LADDER = ["--budgets", "8e7", "1.6e8", "--widths", "8", "16", "24"]


@pytest.fixture(autouse=True)
def with_metrics_only(
    metrics_only: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "run_isoflop", functools.partial(run_isoflop, command=metrics_only))
    monkeypatch.chdir(tmp_path)


def words_of(page: str) -> list[str]:
    """The lines of a page with single blanks."""
    return [" ".join(line.split()) for line in page.splitlines()]


def test_a_dry_run_lists_the_ladder_and_makes_nothing(
    small_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scaling", str(small_config), *LADDER, "--seeds", "0", "1", "--dry-run"]) == 0
    lines = words_of(capsys.readouterr().out)
    assert lines[0] == "scaling: trials"
    assert any(line.startswith("C=1.6e08+d=24+learning_rate=0.001+seed=1 ") for line in lines)
    assert "12 of 12 trials are left" in lines
    assert not Path("sweeps").exists()


def test_best_sizes_laws_and_the_tested_prediction_are_printed(
    small_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["scaling", str(small_config), *LADDER, "--learning-rates", "0.01", "0.1"]
    assert main([*words, "--jobs", "2", "--name", "steps"]) == 0
    page = capsys.readouterr().out
    lines = words_of(page)
    assert lines[0] == "Best size for each budget"
    assert sum("megaFLOP" in line for line in lines) == 3
    assert "predicted: width 16," in page and "add widths" not in page
    assert "best size" in page
    # Nothing is left to run, and the same is said again.
    assert main([*words, "--jobs", "2", "--name", "steps"]) == 0
    assert words_of(capsys.readouterr().out) == lines


def test_a_ladder_beside_the_best_size_is_not_to_be_trusted_and_needs_no_check(
    small_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budgets = ["--budgets", "4e8", "8e8"]
    widths = ["--widths", "24", "32", "40"]
    words = [*budgets, *widths, "--learning-rates", "0.01", "--no-check", "--jobs", "2"]
    assert main(["scaling", str(small_config), *words]) == 0
    page = capsys.readouterr().out
    assert page.count("at the end of the sizes: add widths") == 2
    assert len(list(read_json_lines("sweeps/scaling/trials.jsonl"))) == 6


def test_a_ladder_of_which_too_little_is_left_says_which_budget(
    small_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Above 0.5 every trial diverges.
    words = [*LADDER, "--learning-rates", "0.9", "--jobs", "2"]
    assert main(["scaling", str(small_config), *words]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and "8e+07 FLOPs" in error and "there are 0" in error
    assert "lower the learning rate" in error
    assert len(list(read_json_lines("sweeps/scaling/trials.jsonl"))) == 6
