"""The cost that a run folder foretells, beside the planner's own figures."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from groundup.experiments.cost import Cost, cost_of
from groundup.model.config import PRESETS
from groundup.planner import Execution, step_flops, step_memory
from groundup.runs.metrics import Metrics
from groundup.runs.metrics_file import read_metrics

MODEL = {f"model.{name}": value for name, value in PRESETS["quickstart"].model_dump().items()}


@pytest.fixture
def no_metrics(tmp_path: Path) -> Metrics:
    return read_metrics(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_the_memory_of_what_is_measured_is_planned(no_metrics: Metrics, device: str) -> None:
    def planned(**changes: Any) -> int:
        settings = {"num_steps": 10, "batch_size": 8, "precision": "float32", "device": device}
        found = cost_of({**MODEL, **settings, **changes}, {}, no_metrics).planned_bytes
        assert found is not None
        return found

    memory = step_memory(PRESETS["quickstart"], Execution.of(device, "float32"))
    assert planned() == memory.bytes_at(8)
    assert planned(micro_batch_size=2) < planned()
    assert planned(**{"tuning.lora_rank": 2}) < planned()


WORK = 10 * step_flops(PRESETS["quickstart"], 8)
TOKENS_PER_STEP = 8 * PRESETS["quickstart"].context_length


def cost_after(
    folder: Path, num_steps_done: int, environment: dict[str, Any], device: str = "cpu"
) -> Cost:
    """Of a run of ten steps that read 1,000 tokens a second at a quarter of the device's best."""
    lines = []
    for step in range(1, num_steps_done + 1):
        record = {"step": step, "tokens": step * TOKENS_PER_STEP, "wall_seconds": 3.0 * step}
        lines.append({**record, "tokens_per_second": 1_000.0, "mfu": 0.25, "loss": 3.0})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text, "utf-8")
    settings = {"num_steps": 10, "batch_size": 8, "precision": "float32", "device": device}
    return cost_of({**MODEL, **settings}, environment, read_metrics(folder / "metrics.jsonl"))


def test_time_is_planned_with_the_peak_that_the_run_noted(tmp_path: Path) -> None:
    cost = cost_after(tmp_path, 10, {"peak_flops_per_second": 5e9})
    assert cost.planned_mfu == 0.5
    assert cost.planned_seconds == pytest.approx(WORK / 2.5e9)
    h200 = {"device": "NVIDIA H200", "peak_flops_per_second": 5e9}
    cost = cost_after(tmp_path, 10, h200, device="cuda")
    assert cost.planned_seconds == pytest.approx(WORK / 2e9)


@pytest.mark.parametrize("noted", [{}, {"peak_flops_per_second": None}])
def test_a_peak_that_was_not_noted_follows_from_speed_and_mfu(
    tmp_path: Path, noted: dict[str, Any]
) -> None:
    """At half of the best rate, twice as fast as at the quarter that it reached; but for weights of
    norms, which the rule for MFU counts as products."""
    cost = cost_after(tmp_path, 10, noted)
    assert cost.planned_seconds == pytest.approx(10 * TOKENS_PER_STEP / 2_000, rel=0.01)
    assert cost.planned_tokens_per_second == pytest.approx(2_000, rel=0.01)
    cost = cost_after(tmp_path, 10, {**noted, "device": "NVIDIA H200"}, device="cuda")
    # Of float32 with TF32 products, by the data sheet.
    assert cost.planned_seconds == pytest.approx(WORK / (0.4 * 494.7e12))


@pytest.mark.parametrize(
    "noted", ["fast", True, -1.0, 0, 10**400, math.inf, [5e9]], ids=lambda noted: str(noted)[:9]
)
def test_a_peak_that_cannot_be_is_as_good_as_none(tmp_path: Path, noted: Any) -> None:
    cost = cost_after(tmp_path, 10, {"peak_flops_per_second": noted})
    assert cost.planned_tokens_per_second == pytest.approx(2_000, rel=0.01)


def test_a_run_that_ended_early_is_set_against_its_own_part_of_the_plan(tmp_path: Path) -> None:
    noted = {"peak_flops_per_second": 5e9}
    whole, early = (cost_after(tmp_path, count, noted) for count in (10, 3))
    assert whole.planned_seconds is not None and early.planned_seconds is not None
    assert (whole.seconds, early.seconds) == (30.0, 9.0)
    assert early.planned_seconds == pytest.approx(0.3 * whole.planned_seconds)
    assert early.planned_tokens == whole.planned_tokens == 10 * TOKENS_PER_STEP
    assert early.planned_tokens_per_second == whole.planned_tokens_per_second


def test_a_run_without_figures_is_planned_whole(tmp_path: Path) -> None:
    cost = cost_after(tmp_path, 0, {"peak_flops_per_second": 5e9})
    assert cost.seconds is None
    assert cost.planned_seconds == pytest.approx(WORK / 2.5e9)
