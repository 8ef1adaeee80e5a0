"""`groundup ablate` as typed, with trials that only write metrics: what it lists and prints."""

import functools
import json
from pathlib import Path

import pytest

from groundup.cli.main import main
from groundup.experiments import sweep
from groundup.experiments.runner import Command
from groundup.experiments.sweep import run_ablation


@pytest.fixture(autouse=True)
def with_metrics_only(
    metrics_only: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sweep, "run_ablation", functools.partial(run_ablation, command=metrics_only)
    )
    monkeypatch.chdir(tmp_path)


def ablate(config: Path, *words: str) -> int:
    return main(["ablate", str(config), "--variants", "muon", *words])


def lines_of(page: str) -> dict[str, str]:
    """The lines of a table by their first word, with single blanks."""
    lines = [" ".join(line.split()) for line in page.splitlines()]
    return {line.partition(" ")[0]: line for line in lines if line}


def test_a_dry_run_lists_the_first_seed_and_says_that_more_may_follow(
    small_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = ["--learning-rates", "0.001", "0.003"]
    assert ablate(small_config, *rates, "--dry-run") == 0
    page = capsys.readouterr().out
    assert "muon+learning_rate=0.003+seed=0" in page and "4 trials" in page and "seed=1" not in page
    assert not Path("sweeps").exists()

    assert ablate(small_config, *rates, "--seeds", "0", "--dry-run") == 0
    assert ablate(small_config, "--learning-rates", "0.001", "--dry-run") == 0


def test_each_row_tells_its_best_rate_and_those_it_tried(
    small_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Muon's best is 0.3, and a rate above 0.5 diverges.
    words = "--learning-rates 0.003 0.01 0.3 0.9 --seeds 0 --jobs 2".split()
    assert ablate(small_config, *words) == 0
    lines = lines_of(capsys.readouterr().out)
    assert lines["base"].split()[2:6] == ["0.01", "0.003,", "0.01,", "0.3,"]
    assert lines["muon"].split()[2] == "0.3" and lines["muon"].endswith("diverged at 0.9")
    # Without the greatest rate the best is at the end.
    words.remove("0.9")
    assert ablate(small_config, *words, "--name", "less") == 0
    assert lines_of(capsys.readouterr().out)["muon"].endswith("best rate at the end of those tried")


def test_trials_of_other_data_are_said_to_be(
    small_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--learning-rates", "0.01", "--seeds", "0"]
    assert ablate(small_config, *words) == 0
    for run, data in zip(Path("sweeps/ablations/runs").iterdir(), ("aa", "bb"), strict=True):
        (run / "environment.json").write_text(json.dumps({"data": {"content": data}}))
    capsys.readouterr()
    assert ablate(small_config, *words) == 0
    assert "These runs did not all learn from the same data" in capsys.readouterr().out
