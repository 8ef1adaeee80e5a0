"""Trials as processes: how they end, what is recorded, and what a restart does."""

import fcntl
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from groundup.config import load_settings
from groundup.errors import ConfigError
from groundup.experiments import runner
from groundup.experiments.runner import Command, make_slots
from groundup.experiments.spec import SweepConfig, base_config
from groundup.experiments.sweep import SweepOutcome, run_sweep
from groundup.experiments.sweep_folder import SweepFolder
from groundup.files import locked
from groundup.runs.config import RunConfig

RATE = "optimizer.learning_rate"


def run(spec: SweepConfig, folder: Path, command: Command, **options: Any) -> SweepOutcome:
    return run_sweep(spec, folder / spec.name, command=command, **options)


def test_trials_run_concurrently_the_best_wins_and_a_restart_runs_the_missing_ones(
    make_spec: Any, metrics_only: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOGETHER", "3")
    spec = make_spec(grid={RATE: [0.001, 0.01]}, seeds=[0, 1])
    outcome = run(spec, tmp_path, metrics_only, jobs=3)
    losses = [outcome.records[f"learning_rate=0.01+seed={seed}"].ranking_loss for seed in (0, 1)]
    assert losses == pytest.approx([2.0, 2.01])
    record = outcome.records["learning_rate=0.001+seed=1"]
    assert record.status == "finished" and record.reason is None
    assert (record.step, record.seed) == (20, 1)
    assert record.settings == {RATE: 0.001}
    file = tmp_path / "small" / "runs" / record.trial / "metrics.jsonl"
    before = file.stat().st_mtime_ns
    # Ctrl-C reaches only the sweep, which asks its trials to save and stop.
    assert file.with_name("session.txt").read_text() != str(os.getsid(0))
    # A sweep may grow; a truncated record only means that this trial runs again.
    with (tmp_path / "small" / "trials.jsonl").open("a") as records:
        records.write('{"trial": "learning_rate=0.1+se')
    grown = run(make_spec(grid={RATE: [0.001, 0.01, 0.1]}, seeds=[0, 1]), tmp_path, metrics_only)
    assert len(grown.records) == 6 and file.stat().st_mtime_ns == before


def test_divergence_is_a_result(make_spec: Any, metrics_only: Command, tmp_path: Path) -> None:
    losses = {"ended": 14, "unmeasured": 15, "measured": 16}
    spec = make_spec(variants={name: {"z_loss": z} for name, z in losses.items()})
    outcome = run(spec, tmp_path, metrics_only)
    ended = outcome.records["ended+seed=0"]
    assert ended.status == "diverged" and "not finite" in (ended.reason or "")
    # Without a validation loss, a trial is ranked by its last training loss.
    ranking = [outcome.records[f"{name}measured+seed=0"].ranking_loss for name in ("", "un")]
    assert ranking == pytest.approx([1.5, 2.5])
    # It has ended, so a restart does not run it again.
    again = run(spec, tmp_path, metrics_only)
    assert again.records == outcome.records


def test_a_signal_stops_the_trials_which_can_be_resumed(
    make_spec: Any, metrics_only: Command, tmp_path: Path
) -> None:
    spec = make_spec(grid={RATE: [0.01, 1e-7, 0.1]})
    waiting = tmp_path / "small" / "runs" / "learning_rate=1e-07+seed=0" / "metrics.jsonl"

    def interrupt() -> None:
        while not waiting.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    outcome = run(spec, tmp_path, metrics_only)
    thread.join()
    assert outcome.stopped_by == signal.SIGTERM
    assert list(outcome.records) == ["learning_rate=0.01+seed=0"]
    resumed: dict[str, bool] = {}

    def note(config_file: Path, resume: bool) -> list[str]:
        resumed[config_file.stem] = resume
        return [sys.executable, "-c", ""]

    run(spec, tmp_path, note)
    assert resumed == {"learning_rate=1e-07+seed=0": True, "learning_rate=0.1+seed=0": False}


def test_a_trial_started_by_an_earlier_sweep_is_resumed(
    make_spec: Any, metrics_only: Command, tmp_path: Path
) -> None:
    """A killed sweep's trial takes its lock after the next sweep's check, before that one's
    trial."""
    file = tmp_path / "small" / "runs" / "seed=0" / "config.yaml"
    begin = f"import pathlib; pathlib.Path({str(file)!r}).write_text(''); raise SystemExit(2)"
    resumed = []

    def start(config_file: Path, resume: bool) -> list[str]:
        resumed.append(resume)
        file.parent.mkdir(parents=True, exist_ok=True)
        return metrics_only(config_file, resume) if resume else [sys.executable, "-c", begin]

    assert run(make_spec(), tmp_path, start).records["seed=0"].status == "finished"
    assert resumed == [False, True]


def test_changes_that_affect_existing_trials_are_rejected_by_name(
    make_spec: Any, metrics_only: Command, tmp_path: Path
) -> None:
    variants = {"a": {"batch_size": 4}}
    first = make_spec(variants=variants)
    run(first, tmp_path, metrics_only)
    for changes, complaint in (
        ({"settings": {"batch_size": 4}}, r"batch_size: 2 -> 4.*name"),
        ({"tokens": 5}, r"tokens: None -> 5"),
        ({"variants": {"a": {"batch_size": 8}}}, r"a in .* had other settings: .*4.* -> .*8"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            run(make_spec(**{"variants": variants, **changes}), tmp_path, metrics_only)
    with locked(tmp_path / "small"), pytest.raises(ConfigError, match="another process"):
        run(first, tmp_path, metrics_only)
    grown = make_spec(variants={**variants, "b": {}})
    assert len(run(grown, tmp_path, metrics_only).records) == 2
    # The folder has the variants of the last start; the records have the settings of all.
    run(make_spec(variants={"b": {}}), tmp_path, metrics_only)
    with pytest.raises(ConfigError, match="had other settings"):
        run(make_spec(variants={"a": {}}, seeds=[1]), tmp_path, metrics_only)


def test_started_trials_keep_their_base_and_failed_ones_do_not(
    make_spec: Any, metrics_only: Command, tmp_path: Path
) -> None:
    spec = make_spec(settings={"z_loss": 13})
    failed = run(spec, tmp_path, metrics_only).records["seed=0"]
    assert (failed.status, failed.reason) == ("failed", "13 brings bad luck")
    begun = tmp_path / "small" / "runs" / "seed=0" / "config.yaml"
    begun.touch()
    mended = make_spec(settings={"z_loss": 0})
    with pytest.raises(ConfigError, match=r"z_loss: 13.0 -> 0.0.*delete .*small/runs"):
        run(mended, tmp_path, metrics_only)
    begun.unlink()
    assert run(mended, tmp_path, metrics_only).records["seed=0"].status == "finished"


def test_a_sweep_folder_is_self_contained_and_checkpoints_are_removed(
    make_spec: Any, metrics_only: Command, tmp_path: Path
) -> None:
    checkpoints = tmp_path / "small" / "runs" / "seed=0" / "checkpoints" / "step_000004"
    checkpoints.mkdir(parents=True)
    spec = make_spec(keep_checkpoints="none", why="Because.")
    run(spec, tmp_path, metrics_only)
    assert not checkpoints.exists()
    folder = SweepFolder(tmp_path / "small")
    stored = load_settings(SweepConfig, folder.spec_file)
    assert stored.why == "Because." and base_config(stored) == base_config(spec)
    assert (folder.trials / "seed=0.txt").is_file()
    # An ablation of an earlier version is read as a sweep.
    old = {"kind": "ablation", "prune": {"worse_than_start": 0.5, "patience": 3}}
    assert load_settings(SweepConfig, None, {"name": "a", **old}).name == "a"


@pytest.mark.parametrize(
    ("device", "jobs", "expected"),
    [
        ("auto", None, [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "5"}]),
        ("cuda", 3, [{"CUDA_VISIBLE_DEVICES": name} for name in ("0", "5", "0")]),
        ("cpu", None, [{}]),
        ("cpu", 2, [{"OMP_NUM_THREADS": "4"}] * 2),
        ("cpu", 10, [{"OMP_NUM_THREADS": "1"}] * 10),
    ],
)
def test_concurrent_trials_depend_on_the_device(
    monkeypatch: pytest.MonkeyPatch, device: str, jobs: int | None, expected: list[dict[str, str]]
) -> None:
    monkeypatch.setattr(runner, "_cuda_devices", lambda: ["0", "5"])
    monkeypatch.setattr(runner, "num_cores", lambda: 9)
    found = make_slots(RunConfig(device=device), jobs)
    assert found == expected


def test_a_trial_that_is_still_saving_is_awaited_while_others_run(
    make_spec: Any, metrics_only: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "small" / "runs" / "seed=0"
    folder.mkdir(parents=True)
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    records = tmp_path / "small" / "trials.jsonl"

    def end_after_the_other() -> None:
        while not records.exists():
            time.sleep(0.05)
        # At the second check, the folder is still locked.
        time.sleep(0.3)
        assert not (folder / "metrics.jsonl").exists()
        os.close(lock)

    thread = threading.Thread(target=end_after_the_other)
    thread.start()
    outcome = run(make_spec(seeds=[0, 1]), tmp_path, metrics_only)
    thread.join()
    assert list(outcome.records) == ["seed=1", "seed=0"]
