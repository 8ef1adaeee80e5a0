"""`groundup ablate` as typed, with trials that only write metrics."""

import functools
import json
from pathlib import Path

import pytest

from groundup.cli.main import main
from groundup.experiments import sweep
from groundup.experiments.runner import Command

# Every trial is a process.
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def with_metrics_only(
    metrics_only: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = functools.partial(sweep.run_ablation, command=metrics_only)
    monkeypatch.setattr(sweep, "run_ablation", run)
    monkeypatch.chdir(tmp_path)


def lines_of(capsys: pytest.CaptureFixture[str], verb: str, *words: object) -> list[str]:
    """The lines that a command prints, with single blanks."""
    capsys.readouterr()
    assert main([verb, *map(str, words), "--jobs", "2"]) == 0
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_dry_runs_list_what_is_certain_and_make_nothing(
    small_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    muon = (small_config, "--variants", "muon", "--learning-rates", "0.001", "0.003", "--dry-run")
    # The first seed alone: which rate the others are for is not known yet.
    page = "\n".join(lines_of(capsys, "ablate", *muon))
    assert "muon+learning_rate=0.003+seed=0" in page and "4 trials" in page and "seed=1" not in page
    assert not Path("sweeps").exists()


def test_each_row_of_an_ablation_tells_its_best_rate_and_those_it_tried(
    small_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ablate(*words: object) -> dict[str, str]:
        """The lines by their first word."""
        words = (small_config, "--variants", "muon", "--seeds", 0, *words)
        return {line.partition(" ")[0]: line for line in lines_of(capsys, "ablate", *words)}

    # Muon's best is 0.3, and a rate above 0.5 diverges.
    lines = ablate("--learning-rates", 0.003, 0.01, 0.3, 0.9)
    assert lines["base"].split()[2:6] == ["0.01", "0.003,", "0.01,", "0.3,"]
    assert lines["muon"].split()[2] == "0.3" and lines["muon"].endswith("diverged at 0.9")
    # Without the greatest rate the best is at the end.
    less = ("--learning-rates", 0.003, 0.01, 0.3, "--name", "less")
    assert ablate(*less)["muon"].endswith("best rate at the end of those tried")
    for number, run in enumerate(Path("sweeps/less/runs").iterdir()):
        (run / "environment.json").write_text(json.dumps({"data": {"content": str(number)}}))
    warning = "These runs did not all learn from the same data"
    assert any(line.startswith(warning) for line in ablate(*less).values())
