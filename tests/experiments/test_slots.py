"""Where trials run: what confines each to its slot, and the compiled code that they share."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from groundup.experiments import slots
from groundup.experiments.runner import Command
from groundup.experiments.slots import make_cluster_slots, make_slots, num_devices, shared_bytecode
from groundup.experiments.sweep import run_sweep
from groundup.runs.config import RunConfig

HAS_CACHE = (
    "import json, sys; sys.stdout.write(str(bool(json.__cached__) and __import__('os').path"
    ".exists(json.__cached__)))"
)


def told(folder: Path, name: str) -> list[str]:
    """What every trial wrote into the file of that name."""
    return sorted(file.read_text() for file in folder.glob(f"runs/*/{name}"))


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "_cuda_devices", lambda: ["0", "5"])


@pytest.mark.parametrize(
    ("visible", "count", "expected"),
    [(None, 2, ["0", "1"]), ("3,7", 2, ["3", "7"]), ("3,7", 1, ["3"]), ("", 0, []), (None, 0, [])],
)
def test_a_trial_is_shown_a_device_by_the_name_it_has_outside(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int, expected: list[str | None]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    found = make_slots(RunConfig(device="auto"))
    assert [slot.environment.get("CUDA_VISIBLE_DEVICES") for slot in found] == (expected or [None])


def test_trials_on_one_processor_share_its_cores(
    make_spec: Any, metrics_only: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setattr(slots, "num_cores", lambda: 9)
    run_sweep(make_spec(), tmp_path / "alone", command=metrics_only)
    assert told(tmp_path / "alone", "threads.txt") == ["7"]
    run_sweep(make_spec(seeds=[0, 1]), tmp_path / "two", jobs=2, command=metrics_only)
    assert told(tmp_path / "two", "threads.txt") == ["4", "4"]
    # Every one has a core to run on.
    many = make_slots(RunConfig(device="cpu"), jobs=10)
    assert [slot.environment for slot in many] == [{"OMP_NUM_THREADS": "1"}] * 10


@pytest.mark.parametrize(
    ("device", "jobs", "expected"),
    [
        ("auto", None, ["0", "5"]),
        ("cuda", 4, ["0", "5", "0", "5"]),
        ("cuda", 1, ["0"]),
        ("cuda:1", None, [None]),
        ("cpu", None, [None]),
        ("cpu", 2, [None, None]),
    ],
)
def test_slots_follow_the_device(
    two_devices: None, device: str, jobs: int | None, expected: list[str | None]
) -> None:
    found = make_slots(RunConfig(device=device), jobs)
    assert [slot.environment.get("CUDA_VISIBLE_DEVICES") for slot in found] == expected
    assert len({id(slot) for slot in found}) == len(expected)
    assert num_devices(found) == len(set(expected))


@pytest.mark.parametrize(
    ("changes", "jobs", "warning"),
    [
        ({"minutes": 1}, 2, "2 trials at once share 1 device, so"),
        ({}, 2, None),
        ({"minutes": 1, "settings": {"device": "cuda"}}, 3, "3 trials at once share 2 devices, so"),
        ({"minutes": 1, "settings": {"device": "cuda"}}, 2, None),
    ],
)
def test_minutes_on_a_shared_device_are_warned_of(
    make_spec: Any,
    metrics_only: Command,
    tmp_path: Path,
    two_devices: None,
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, Any],
    jobs: int | None,
    warning: str | None,
) -> None:
    run_sweep(make_spec(**changes), tmp_path, jobs=jobs, command=metrics_only)
    if warning is None:
        assert "at once share" not in caplog.text
    else:
        assert caplog.text.count(warning) == 1 and "in 1 minutes" in caplog.text


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
def test_what_one_process_compiled_is_there_for_the_next(tmp_path: Path) -> None:
    assert run_python(HAS_CACHE, dict(os.environ)) == "False"
    environment = {**os.environ, **shared_bytecode(str(tmp_path / "shared"))}
    run_python("import json", environment)
    assert run_python(HAS_CACHE, environment) == "True"


@pytest.mark.usefixtures("without_bytecode")
def test_trials_share_it(make_spec: Any, metrics_only: Command, tmp_path: Path) -> None:
    spec = make_spec(grid={"optimizer.learning_rate": [0.001, 0.01]})
    run_sweep(spec, tmp_path / "small", command=metrics_only)
    (folder,) = set(told(tmp_path / "small", "bytecode.txt"))
    assert "groundup-bytecode-" in folder and not Path(folder).exists()


def test_nothing_is_changed_where_bytecode_is_kept() -> None:
    assert shared_bytecode("anywhere") == {} or sys.dont_write_bytecode


@pytest.mark.parametrize(
    ("device", "jobs", "count", "resources"),
    [
        ("auto", None, 3, {"num_gpus": 1, "num_cpus": 1}),
        ("auto", 2, 2, {"num_gpus": 1, "num_cpus": 1}),
        # One on each machine with cores, as many threads as the smallest has.
        ("cpu", None, 2, {"num_cpus": 8}),
        ("cpu", 3, 3, {"num_cpus": 4}),
        ("cpu", 100, 100, {"num_cpus": 1}),
    ],
)
def test_a_cluster_has_a_slot_for_each_gpu_or_machine(
    device: str, jobs: int | None, count: int, resources: dict[str, float]
) -> None:
    machines = [{"CPU": 8.0, "GPU": 1.0}, {"CPU": 32.0, "GPU": 2.0}, {"memory": 1.0}]
    slots = make_cluster_slots(machines, RunConfig(device=device), jobs)
    assert len(slots) == count and all(slot.resources == resources for slot in slots)
