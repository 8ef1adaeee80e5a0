"""Dry runs of sweep, ablate and scaling: they refuse what a run refuses, and write nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from groundup.cli import train
from groundup.cli.main import main
from groundup.config import load_settings
from groundup.experiments.ablation import ablation_spec
from groundup.experiments.isoflop import isoflop_spec
from groundup.experiments.runner import Command
from groundup.experiments.spec import SweepConfig, load_sweep
from groundup.experiments.sweep import plan_trials, run_sweep
from groundup.experiments.sweep_folder import SweepFolder
from groundup.experiments.trials import TrialRecord
from groundup.planner.parameters import count_parameters
from groundup.runs.config import RunConfig

WriteSweep = Callable[..., str]
RATE = "optimizer.learning_rate"
LADDER: dict[str, Any] = {"budgets": [8e7, 1.6e8], "widths": [8, 16, 24]}


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def begin(spec: SweepConfig) -> None:
    """A folder in which a trial of the sweep has ended."""
    folder = SweepFolder(Path("sweeps") / spec.name)
    folder.path.mkdir(parents=True)
    folder.save(spec)
    folder.add_record(TrialRecord("a+seed=0", "a", "finished", 0))


def files() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path("sweeps").rglob("*") if path.is_file()}


def error_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What the command says on its way out, which is an error and no table."""
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ")
    return err.splitlines()[-1]


def test_a_dry_run_says_how_far_each_trial_is_and_what_is_left(
    write_sweep: WriteSweep, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = write_sweep(grid={"batch_size": [2, 4]}, seeds=[0, 1])
    assert main(["sweep", spec, "--dry-run"]) == 0
    page = capsys.readouterr().out
    assert "batch_size=4+seed=1" in page and "4 trials" in page and not Path("sweeps").exists()

    folder = SweepFolder("sweeps/small")
    begun = folder.runs / "batch_size=4+seed=0"
    begun.mkdir(parents=True)
    (begun / "config.yaml").touch()
    for size, status in ((2, "finished"), (4, "failed"), (8, "diverged")):
        point = f"batch_size={size}"
        tried = {"batch_size": size}
        folder.add_record(TrialRecord(f"{point}+seed=0", point, status, 0, tried))  # type: ignore[arg-type]
    spec = write_sweep(grid={"batch_size": [2, 4, 8, 16]})
    assert main(["sweep", spec, "--dry-run"]) == 0
    *trials, sum_of_left = capsys.readouterr().out.splitlines()[2:]
    states = [" ".join(line.split()[-2:]) for line in trials]
    assert [state.split()[-1] for state in states[:3]] == ["finished", "begun", "diverged"]
    assert states[3] == "to run"
    assert "2 of 4 trials are left" in sum_of_left


def test_a_changed_base_is_refused_by_a_dry_run_in_the_same_words(
    write_sweep: WriteSweep, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(load_sweep(write_sweep(grid={RATE: [0.001]})))
    before = files()
    changed = write_sweep(grid={RATE: [0.001]}, settings={"num_steps": 14})
    error = error_of(capsys, "sweep", changed, "--dry-run")
    assert "have another base: num_steps: 12 -> 14. Give the sweep another name" in error
    assert files() == before and not Path("sweeps/small/runs").exists()
    assert error_of(capsys, "sweep", changed) == error
    assert files() == before
    # What may grow does not hinder it.
    assert main(["sweep", write_sweep(grid={RATE: [0.001, 0.01]}), "--dry-run"]) == 0


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("ablate", ["--variants", "muon"]),
        ("scaling", ["--budgets", "8e7", "1.6e8", "--widths", "8", "16", "24"]),
    ],
)
def test_the_dry_runs_of_other_verbs_refuse_a_changed_base_too(
    small_config: Path, capsys: pytest.CaptureFixture[str], verb: str, words: list[str]
) -> None:
    base = load_settings(RunConfig, small_config)
    if verb == "ablate":
        begin(ablation_spec(base, variants=["muon"]))
    else:
        begin(isoflop_spec(base, **LADDER))
    before = files()
    assert main([verb, str(small_config), *words, "--dry-run"]) == 0
    capsys.readouterr()
    settings = yaml.safe_load(small_config.read_text("utf-8"))
    Path("changed.yaml").write_text(yaml.safe_dump({**settings, "z_loss": 0.5}), "utf-8")
    error = error_of(capsys, verb, "changed.yaml", *words, "--dry-run")
    assert "have another base: z_loss: 0.0 -> 0.5. Give" in error
    assert error_of(capsys, verb, "changed.yaml", *words) == error
    assert files() == before


def test_a_dry_run_where_a_file_is_in_the_way_says_so(
    write_sweep: WriteSweep, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("sweeps").mkdir()
    Path("sweeps/small").touch()
    assert "sweeps/small is a file" in error_of(capsys, "sweep", write_sweep(), "--dry-run")


def test_a_dry_run_of_a_search_says_how_far_it_is(
    write_sweep: WriteSweep, capsys: pytest.CaptureFixture[str], metrics_only: Command
) -> None:
    pytest.importorskip("optuna")
    ranges = {RATE: {"low": 1e-3, "high": 0.1, "scale": "log"}}
    search: dict[str, Any] = {"sampler": "tpe", "ranges": ranges, "seeds": [0, 1]}
    spec = write_sweep(**search, num_trials=2)
    assert main(["sweep", spec, "--dry-run"]) == 0
    page = capsys.readouterr().out
    assert "trials: none finished, 4 left" in page
    assert not Path("sweeps").exists()

    path = Path("sweeps/small")
    run_sweep(load_sweep(spec), path, command=metrics_only)
    before = files()
    assert main(["sweep", spec, "--dry-run"]) == 0
    page = capsys.readouterr().out
    assert page.splitlines()[1:] == ["trials: 4 finished, 0 left"]
    trial = next(iter(SweepFolder(path).records().values()))
    SweepFolder(path).add_record(TrialRecord(trial.trial, trial.point, "failed", trial.seed))
    assert main(["sweep", write_sweep(**search, num_trials=3), "--dry-run"]) == 0
    page = capsys.readouterr().out
    assert "trials: 3 finished, 3 left" in page
    assert before.keys() == files().keys()


def test_what_a_search_leaves_out_is_not_left(
    write_sweep: WriteSweep, capsys: pytest.CaptureFixture[str], metrics_only: Command
) -> None:
    pytest.importorskip("optuna")
    # Heads of three cannot share a width of 16, and a choice of one is proposed twice.
    for heads, counts in (([3], "none finished, 0 left"), ([2], "1 finished, 0 left")):
        name = f"heads{heads[0]}"
        spec = write_sweep(name=name, sampler="tpe", num_trials=2, grid={"model.num_heads": heads})
        run_sweep(load_sweep(spec), Path("sweeps") / name, command=metrics_only)
        assert main(["sweep", spec, "--dry-run"]) == 0
        assert capsys.readouterr().out.splitlines()[1:] == [f"trials: {counts}"]


@pytest.mark.parametrize("words", [["--dry-run"], []])
@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"settings": {"data.mix": ["nothere=1"], "model.vocab_size": 300}}, "nothere"),
        ({"grid": {"data.shards": ["SHARDS", "nothere"]}}, "trial shards=nothere+seed=0: folder"),
        (
            {"variants": {"a": {}, "b": {"data.tokenizer": "gone.json"}}},
            "trial b+seed=0: tokenizer gone.json",
        ),
        ({"settings": {"data.tokenizer": "/"}}, "trial seed=0: tokenizer /"),
        (
            {"grid": {"model.vocab_size": [300, 299]}},
            "trial vocab_size=299+seed=0: vocab_size 299 is too small for shards with ids up to",
        ),
    ],
)
def test_data_that_do_not_fit_are_named_before_anything_starts(
    write_sweep: WriteSweep,
    small_config: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    values: dict[str, Any],
    complaint: str,
) -> None:
    shards = str(small_config.parent / "shards")
    values = yaml.safe_load(yaml.safe_dump(values).replace("SHARDS", shards))
    assert complaint in error_of(capsys, "sweep", write_sweep(**values), *words)
    assert not Path("sweeps").exists()


def test_the_vocabulary_is_that_of_the_shards_as_in_training(
    small_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = yaml.safe_load(small_config.read_text("utf-8"))
    del settings["model"]["vocab_size"]
    shards = settings["data"].pop("shards")
    settings["data"]["shards"] = shards
    Path("with.yaml").write_text(yaml.safe_dump(settings), "utf-8")
    variants = {"a": {"data.shards": shards}, "b": {"data.mix": [f"{shards}=1"]}}
    sweep = {"name": "with", "base": "with.yaml", "variants": variants}
    Path("sweep.yaml").write_text(yaml.safe_dump(sweep), "utf-8")
    trials = plan_trials(load_sweep("sweep.yaml"), Path("sweeps") / "with")
    assert [trial.config.model.vocab_size for trial in trials] == [300, 300]
    arguments = train.Arguments(config=Path("with.yaml"))
    assert train.settings_of(arguments).model == trials[0].config.model

    # As in the other verbs that start from a file.
    size = f"{sum(count_parameters(trials[0].config.model).values()):,}"
    words = ["--budgets", "8e7", "1.6e8", "--widths", "8", "16", "24"]
    for verb in (["ablate", "with.yaml"], ["scaling", "with.yaml", *words]):
        assert main([*verb, "--dry-run"]) == 0
        assert size in capsys.readouterr().out
    assert main(["plan", "--config", "with.yaml"]) == 0
    assert size in capsys.readouterr().out


def test_what_has_ended_needs_its_data_no_more(
    write_sweep: WriteSweep, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = write_sweep(settings={"data.shards": "gone"})
    folder = SweepFolder("sweeps/small")
    folder.path.mkdir(parents=True)
    folder.add_record(TrialRecord("seed=0", "base", "finished", 0, best_validation_loss=2.0))
    assert main(["sweep", spec, "--dry-run"]) == 0 and main(["sweep", spec]) == 0
    assert "the runs are in sweeps" in capsys.readouterr().out


def test_a_dry_run_needs_no_device(
    write_sweep: WriteSweep, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert main(["sweep", write_sweep(settings={"device": "cuda"}), "--dry-run"]) == 0
    assert "1 trials" in capsys.readouterr().out
