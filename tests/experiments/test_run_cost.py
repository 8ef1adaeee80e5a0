"""The cost that a run folder foretells, beside the planner's own figures."""

from pathlib import Path
from typing import Any

import pytest

from groundup.experiments.results.run_cost import cost_of
from groundup.experiments.results.run_metrics import Metrics, read_metrics
from groundup.model.config import PRESETS
from groundup.planner import Execution, training_memory

MODEL = {f"model.{name}": value for name, value in PRESETS["quickstart"].model_dump().items()}


@pytest.fixture
def no_metrics(tmp_path: Path) -> Metrics:
    return read_metrics(tmp_path / "metrics.jsonl")


def planned_bytes(metrics: Metrics, **settings: Any) -> int | None:
    figures = {**MODEL, "num_steps": 10, "batch_size": 8, "precision": "float32", **settings}
    return cost_of(figures, {}, metrics).planned_bytes


def test_on_a_cpu_the_process_is_foretold_since_it_is_what_is_measured(
    no_metrics: Metrics,
) -> None:
    memory = training_memory(PRESETS["quickstart"], Execution("cpu", "float32"))
    planned = planned_bytes(no_metrics, device="cpu")
    assert planned == memory.process_bytes + memory.bytes_at(8)
    assert memory.process_bytes > 100_000_000


def test_on_a_gpu_the_tensors_are_foretold(no_metrics: Metrics) -> None:
    memory = training_memory(PRESETS["quickstart"], Execution("cuda", "float32"))
    assert planned_bytes(no_metrics, device="cuda:1") == memory.bytes_at(8)


def test_micro_batches_take_less_than_a_whole_batch(no_metrics: Metrics) -> None:
    whole = planned_bytes(no_metrics, device="cpu")
    parts = planned_bytes(no_metrics, device="cpu", micro_batch_size=2)
    assert whole is not None and parts is not None and parts < whole
