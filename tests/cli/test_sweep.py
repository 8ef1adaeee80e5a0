"""`groundup sweep` and `report`: what they print, and that dry runs write nothing."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from groundup.cli import train
from groundup.cli.main import main
from groundup.experiments.runner import Command
from groundup.experiments.spec import load_sweep
from groundup.experiments.sweep import plan_trials, run_sweep
from groundup.experiments.sweep_folder import SweepFolder
from groundup.experiments.trials import TrialRecord
from groundup.planner.parameters import count_parameters

WriteSweep = Callable[..., str]
RATE = "optimizer.learning_rate"
SWEEP = Path("sweeps/small")


@pytest.fixture(autouse=True)
def in_a_folder(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # For subprocesses, whose working directory is the new folder.
    monkeypatch.setenv("PYTHONPATH", str(repository / "src"))
    monkeypatch.chdir(tmp_path)


def files() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path("sweeps").rglob("*") if path.is_file()}


def add(trial: str, status: Any = "finished", settings: dict[str, Any] | None = None) -> None:
    """Record the end of a trial that never ran."""
    SWEEP.mkdir(parents=True, exist_ok=True)
    point = trial.removesuffix("+seed=0")
    SweepFolder(SWEEP).add_record(TrialRecord(trial, point, status, 0, settings or {}))


def test_a_dry_run_shows_the_progress_of_each_trial(
    write_sweep: WriteSweep, shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A dry run needs no device.
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    settings = {"device": "cuda"}
    spec = write_sweep(grid={"batch_size": [2, 4]}, seeds=[0, 1], settings=settings)
    page = shell("sweep", spec, "--dry-run")
    assert "batch_size=4+seed=1" in page and "4 trials" in page and not SWEEP.exists()
    begun = SWEEP / "runs" / "batch_size=4+seed=0"
    begun.mkdir(parents=True)
    (begun / "config.yaml").touch()
    for size, status in ((2, "finished"), (4, "failed"), (8, "diverged")):
        add(f"batch_size={size}+seed=0", status, {"batch_size": size})
    spec = write_sweep(grid={"batch_size": [2, 4, 8, 16]}, settings=settings)
    *trials, sum_of_left = shell("sweep", spec, "--dry-run").splitlines()[2:]
    assert [line.split()[-1] for line in trials] == ["finished", "begun", "diverged", "run"]
    assert "2 of 4 trials are left" in sum_of_left


def test_a_dry_run_of_a_search_shows_its_progress(
    write_sweep: WriteSweep, shell: Any, metrics_only: Command
) -> None:
    pytest.importorskip("optuna")
    ranges = {RATE: {"low": 1e-3, "high": 0.1, "scale": "log"}}
    search: dict[str, Any] = {"ranges": ranges, "seeds": [0, 1]}
    spec = write_sweep(**search, num_trials=2)
    assert "a search proposes 2 points" in shell("sweep", spec, "--dry-run")
    assert not SWEEP.exists()
    run_sweep(load_sweep(spec), SWEEP, command=metrics_only)
    before = files()
    page = shell("sweep", spec, "--dry-run")
    assert page.count("finished") == 4 and "0 of 4 trials are left" in page
    trial = next(iter(SweepFolder(SWEEP).records().values()))
    SweepFolder(SWEEP).add_record(TrialRecord(trial.trial, trial.point, "failed", trial.seed))
    page = shell("sweep", write_sweep(**search, num_trials=3), "--dry-run")
    assert "1 of 4 trials are left" in page and before.keys() == files().keys()
    # 16 is not divisible by three heads.
    spec = write_sweep(name="heads", num_trials=2, grid={"model.num_heads": [3]})
    run_sweep(load_sweep(spec), Path("sweeps/heads"), command=metrics_only)
    assert "0 of 0 trials are left" in shell("sweep", spec, "--dry-run")


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"grid": {"model.d_modell": [8]}}, "did you mean model.d_model?"),
        ({"grid": {"model.d_model": [17]}}, "trial d_model=17"),
        ({"settings": {"data.mix": ["nothere=1"], "model.vocab_size": 300}}, "nothere"),
        ({"grid": {"data.shards": ["SHARDS", "nothere"]}}, "trial shards=nothere+seed=0: nothere"),
        ({"grid": {"data.tokenizer": ["gone.json"]}}, "seed=0: tokenizer gone.json"),
        ({"settings": {"data.tokenizer": "/"}}, "trial seed=0: tokenizer /"),
        ({"grid": {"model.vocab_size": [300, 299]}}, "=299+seed=0: vocab_size 299 is too"),
    ],
)
def test_mismatched_settings_and_data_are_reported_before_the_start(
    write_sweep: WriteSweep, small_config: Path, shell: Any, values: Any, complaint: str
) -> None:
    shards = str(small_config.parent / "shards")
    values = yaml.safe_load(yaml.safe_dump(values).replace("SHARDS", shards))
    for words in ([], ["--dry-run"]):
        assert complaint in shell.fails("sweep", write_sweep(**values), *words)
    assert not Path("sweeps").exists()


def test_the_vocabulary_size_is_that_of_the_shards(small_config: Path, shell: Any) -> None:
    settings = yaml.safe_load(small_config.read_text("utf-8"))
    del settings["model"]["vocab_size"]
    shards = settings["data"]["shards"]
    Path("with.yaml").write_text(yaml.safe_dump(settings), "utf-8")
    variants = {"a": {"data.shards": shards}, "b": {"data.mix": [f"{shards}=1"]}}
    values = {"name": "with", "base": "with.yaml", "variants": variants}
    Path("sweep.yaml").write_text(yaml.safe_dump(values), "utf-8")
    trials = plan_trials(load_sweep("sweep.yaml"), Path("sweeps") / "with")
    assert [trial.config.model.vocab_size for trial in trials] == [300, 300]
    arguments = train.Arguments(config=Path("with.yaml"))
    assert train.settings_of(arguments).model == trials[0].config.model
    # As with other verbs that read a settings file.
    size = f"{sum(count_parameters(trials[0].config.model).values()):,}"
    for words in (["sweep", "sweep.yaml", "--dry-run"], ["plan", "--config", "with.yaml"]):
        assert size in shell(*words)


def test_finished_trials_do_not_need_their_data(write_sweep: WriteSweep, shell: Any) -> None:
    spec = write_sweep(settings={"data.shards": "gone"})
    add("seed=0")
    shell("sweep", spec, "--dry-run")
    assert "the runs are in sweeps" in shell("sweep", spec)


def test_a_sweep_fails_if_every_trial_failed(
    write_sweep: WriteSweep,
    capsys: pytest.CaptureFixture[str],
    metrics_only: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = functools.partial(run_sweep, command=metrics_only)
    monkeypatch.setattr("groundup.experiments.sweep.run_sweep", run)
    spec = write_sweep(grid={"z_loss": [13]})
    assert main(["sweep", spec]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    begin = "error: all 1 trials of sweeps/small failed, the last one with: 13 brings bad luck"
    assert error.startswith(begin)
    # One finished trial is a result, even if others failed.
    add("other")
    assert main(["sweep", spec]) == 0


def test_runs_are_compared_and_their_names_cannot_control_the_terminal(
    tmp_path: Path, shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record = json.dumps({"step": 1, "tokens": 1, "wall_seconds": 1.0, "loss": 3.0})
    for name, lines in (("slow", f"{record}\n"), ("fast", f'{record}\n{{"step": 2, "lo')):
        Path("runs", name).mkdir(parents=True)
        Path("runs", name, "metrics.jsonl").write_text(lines)
    assert "written: report.html" in shell("report", "slow", "runs/fast", "--title", "Speed")
    assert "<h1>Speed</h1>" in Path("report.html").read_text("utf-8")
    Path("runs/fast").rename("runs/\x1b[2Jfast\nerror: all is lost")
    printed = shell("report", "runs", "--out", "pages/all.html")
    assert "slow" in Path("pages/all.html").read_text("utf-8")
    assert "\x1b" not in printed and "\nerror" not in printed
    assert "the last line of metrics.jsonl is incomplete and was skipped." in printed
