"""`micro_batch_size: auto`: as many sequences at once as the planner says fit, settled once."""

import pytest

from groundup.errors import ConfigError
from groundup.runs.config import RunConfig
from groundup.training import execution
from groundup.training.execution import planned_memory, settle

CONFIG = RunConfig(device="cpu", batch_size=24)


def settle_with(monkeypatch: pytest.MonkeyPatch, num_bytes: int, config: RunConfig) -> RunConfig:
    monkeypatch.setattr(execution, "memory_bytes", lambda: num_bytes)
    return settle(config)


def bytes_for(micro_batch: int) -> int:
    memory = planned_memory(CONFIG.model_copy(update={"precision": "float32"}))
    return memory.process_bytes + memory.bytes_at(micro_batch, accumulates=micro_batch < 24)


def test_all_sequences_are_taken_at_once_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    settled = settle_with(monkeypatch, bytes_for(24), CONFIG)
    assert settled.micro_batch_size is None and settled.sequences_in_memory == 24


def test_the_greatest_divisor_that_fits_is_taken_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settle_with(monkeypatch, bytes_for(7), CONFIG).micro_batch_size == 6
    assert settle_with(monkeypatch, bytes_for(1), CONFIG).micro_batch_size == 1


def test_what_was_settled_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    settled = settle_with(monkeypatch, bytes_for(7), CONFIG)
    assert settle_with(monkeypatch, bytes_for(24), settled) == settled


@pytest.mark.parametrize("chosen", [None, 24, 3])
def test_a_choice_is_never_changed(monkeypatch: pytest.MonkeyPatch, chosen: int | None) -> None:
    config = CONFIG.model_copy(update={"micro_batch_size": chosen})
    assert settle_with(monkeypatch, 1, config).micro_batch_size == chosen


def test_a_model_that_cannot_fit_is_refused_before_it_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match="one sequence of 256 tokens, and of 1,000 it may use 0"):
        settle_with(monkeypatch, 1_000, CONFIG)


def test_who_does_not_train_needs_no_memory_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "memory_bytes", lambda: 1_000)
    settled = execution.settle_device(CONFIG)
    assert settled.device == "cpu" and settled.micro_batch_size == "auto"
    assert execution.sequences_to_evaluate(settled) == 1
    chosen = settled.model_copy(update={"micro_batch_size": 3})
    assert execution.sequences_to_evaluate(chosen) == 3
