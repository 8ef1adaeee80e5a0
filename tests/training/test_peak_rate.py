"""The best rate of a device: measured once on a CPU, and the same in log, folder and report."""

import json
import re
from collections.abc import Callable, Iterator

import pytest
import torch

from groundup.experiments.results.run_result import read_run
from groundup.planner.quantities import show_duration
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.training import peak_rate
from groundup.training.loop import train
from groundup.training.peak_rate import core_peak, find_peak

MakeConfig = Callable[..., RunConfig]


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing has been measured, as in a new process; nor is what a test measures kept."""
    core_peak.cache_clear()
    yield
    core_peak.cache_clear()


@pytest.fixture
def products(fresh: None, monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """What was timed; each product takes twice as long as the one before."""
    timed: list[torch.dtype] = []

    def time_product(dtype: torch.dtype) -> float:
        timed.append(dtype)
        return 1e-3 * 2 ** len(timed)

    monkeypatch.setattr(peak_rate, "_seconds_of_product", time_product)
    return timed


def test_the_peak_is_measured_on_a_cpu_and_known_or_none_on_gpus(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config().model_copy(update={"precision": "float32"})
    peak = find_peak(config)
    assert peak is not None and peak > 1e6
    on_gpu = config.model_copy(update={"device": "cuda", "precision": "bfloat16"})
    monkeypatch.setattr(peak_rate, "device_name", lambda config: "NVIDIA H200")
    assert find_peak(on_gpu) == pytest.approx(989.4e12)
    monkeypatch.setattr(peak_rate, "device_name", lambda config: "A toy")
    assert find_peak(on_gpu) is None
    assert find_peak(config.model_copy(update={"device": "mps"})) is None


@pytest.mark.usefixtures("fresh")
def test_one_core_is_timed_and_threads_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    multiply = torch.mm

    def watch(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        seen.add(torch.get_num_threads())
        return multiply(left, right)

    monkeypatch.setattr(torch, "mm", watch)
    torch.set_num_threads(2)
    assert core_peak(torch.float32) > 1e6
    assert seen == {1} and torch.get_num_threads() == 2


def test_threads_add_up_and_each_precision_is_measured_once(
    make_config: MakeConfig, products: list[torch.dtype]
) -> None:
    config = make_config().model_copy(update={"precision": "float32"})
    half = config.model_copy(update={"precision": "bfloat16"})
    one = find_peak(config)
    assert one == 2 * 512**3 / 2e-3
    torch.set_num_threads(2)
    assert find_peak(config) == 2 * one
    assert find_peak(half) == one and find_peak(half) == one
    assert products == [torch.float32, torch.bfloat16]


def test_log_folder_and_report_name_one_time(
    make_config: MakeConfig, products: list[torch.dtype]
) -> None:
    config = make_config("run", {"precision": "float32"})
    train(config)
    folder = RunFolder(config.run_folder)
    assert products == [torch.float32]
    assert folder.read_environment()["peak_flops_per_second"] == find_peak(config)
    told = re.search(r"about (.+) for 12 steps at 50% of the ", folder.log_file.read_text("utf-8"))
    planned = read_run(folder.path).cost.planned_seconds
    assert told is not None and planned is not None
    assert told[1] == show_duration(planned)


def test_another_peak_is_no_other_condition_of_a_resume(make_config: MakeConfig) -> None:
    config = make_config()
    train(config, stop_after=3)
    folder = RunFolder(config.run_folder)
    begun = {**folder.read_environment(), "peak_flops_per_second": 1.0}
    folder.environment_file.write_text(json.dumps(begun), "utf-8")
    train(config, resume=True, stop_after=6)
    environment = folder.read_environment()
    assert environment["resumes"][0]["changes"] == []
    assert environment["peak_flops_per_second"] == 1.0
    assert "other conditions" not in folder.log_file.read_text("utf-8")
