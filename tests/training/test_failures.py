"""Failures that must not lose a run: non-finite losses, full disks, out of memory."""

import errno
import itertools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from groundup.checkpoint import CheckpointFolder
from groundup.data.batches.loader import Batch
from groundup.distributed.process_group import LostRankError
from groundup.errors import GroundupError
from groundup.files import append_json_line
from groundup.model import TransformerLM
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.training import loop, metrics
from groundup.training.clock import Clock
from groundup.training.loop import train
from groundup.training.metrics import AfterStep
from groundup.training.step import Step
from groundup.training.verify import compare_runs

from .conftest import MakeConfig

Poison = Callable[..., None]


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Poison:
    """`poison({5})` makes the losses of that batch NaN."""
    real_step, real_loss = Step.__call__, TransformerLM.loss
    spoiled = set[int]()

    def loss(model: Any, *arguments: Any, **options: Any) -> Tensor:
        return real_loss(model, *arguments, **options) * torch.nan

    def poisoned_step(step: Step, batch: Batch, tick: Any) -> Any:
        with monkeypatch.context() as patch:
            if batch.step in spoiled:
                patch.setattr(TransformerLM, "loss", loss)
            return real_step(step, batch, tick)

    monkeypatch.setattr(Step, "__call__", poisoned_step)

    def spoil(steps: set[int]) -> None:
        spoiled.clear()
        spoiled.update(steps)

    return spoil


def test_a_non_finite_gradient_changes_nothing(
    make_config: MakeConfig, build: Any, take_step: Any
) -> None:
    config = make_config()
    state, ids = build(config), torch.arange(34).reshape(2, 17)
    batch = Batch(0, ids[:, :-1], ids[:, 1:])
    weights = {name: value.clone() for name, value in state.model.state_dict().items()}
    hook = state.model.token_embedding.weight.register_hook(lambda gradient: gradient * torch.nan)
    result = take_step(config, state, batch)
    hook.remove()
    assert result.is_skipped and math.isnan(result.gradient_norm) and math.isfinite(result.loss)
    assert all(torch.equal(one, weights[name]) for name, one in state.model.state_dict().items())
    assert not take_step(config, state, batch).is_skipped


def test_a_run_with_skipped_steps_resumes_exactly(make_config: MakeConfig, poison: Poison) -> None:
    poison({4, 5})
    whole = make_config("whole", {"model.dropout": 0.2})
    train(whole)
    for stop in (4, 5, 6):
        parted = make_config(f"parted-{stop}", {"model.dropout": 0.2})
        train(parted, clock=Clock(stop_after=stop))
        train(parted, resume=True)
        assert compare_runs(whole.run_folder, parted.run_folder).differences == []


def test_many_skipped_steps_stop_the_run_at_its_last_good_state(
    make_config: MakeConfig, records_of: Any, poison: Poison
) -> None:
    poison(set(range(5, 12)))
    # A skipped step is recorded, whatever the interval.
    config = make_config("run", {"max_skipped_steps": 3, "logging.every_steps": 100})
    with pytest.raises(GroundupError, match="3 steps in a row") as caught:
        train(config)
    message = str(caught.value)
    assert "after step 5, its last good one" in message
    assert message in RunFolder(config.run_folder).log_file.read_text()
    outcome = RunFolder(config.run_folder).read_outcome()
    assert outcome is not None and (outcome.state, outcome.step) == ("diverged", 8)
    checkpoints = CheckpointFolder(config.run_folder / "checkpoints")
    assert checkpoints.newest().step == 5
    skipped = [record for record in records_of(config) if record.get("skipped")]
    assert [record["step"] for record in skipped] == [6, 7, 8]
    assert skipped[0]["reason"] == "loss nan, gradient norm nan" and skipped[0]["loss"] is None
    assert skipped[0]["gradient_norm"] is None and skipped[0]["learning_rate"] > 0
    # Once the data are fixed, the run continues normally.
    poison(set())
    assert train(config, resume=True).num_skipped == 0
    healthy = make_config("healthy", {"max_skipped_steps": 3, "logging.every_steps": 100})
    train(healthy)
    assert compare_runs(healthy.run_folder, config.run_folder).differences == []


@pytest.mark.parametrize("bad_steps", [{2, 4, 6, 11}, {0, 1, 2, 3}, set(range(4, 12))])
def test_reading_results_one_step_late_changes_nothing(
    make_config: MakeConfig, poison: Poison, monkeypatch: pytest.MonkeyPatch, bad_steps: set[int]
) -> None:
    poison(bad_steps)
    changes = {"max_skipped_steps": 4, "checkpoints.every_steps": 5, "data.verify": False}
    prompt, late = make_config("prompt", changes), make_config("late", changes)
    outcomes = []
    for config in (prompt, late):
        monkeypatch.setattr(loop, "_has_queue", lambda config: config.name == "late")
        try:
            outcomes.append(str(train(config).loss))
        except GroundupError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]
    assert compare_runs(prompt.run_folder, late.run_folder).differences == []


def test_a_full_disk_is_only_an_error_if_it_is_full_at_the_end(
    finished: RunConfig,
    make_config: MakeConfig,
    records_of: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    real_save, full_steps = CheckpointFolder.save, {6, 9, 12}

    def save(folder: CheckpointFolder, step: int, *rest: Any) -> Path:
        if step in full_steps:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder.path))
        return real_save(folder, step, *rest)

    monkeypatch.setattr(CheckpointFolder, "save", save)
    config = make_config()
    with pytest.raises(GroundupError, match=r"No space left.*--resume"):
        train(config)
    assert "no checkpoint of step 6" in caplog.text and records_of(config)[-1]["step"] == 12
    checkpoints = CheckpointFolder(config.run_folder / "checkpoints")
    assert checkpoints.steps() == [3]
    # The last good checkpoint is kept, and the run continues from it once there is space.
    full_steps.remove(12)
    assert train(config, resume=True).is_finished and checkpoints.steps() == [3, 12]
    assert compare_runs(finished.run_folder, config.run_folder).differences == []


def test_unwritten_metrics_are_buffered_and_written_before_a_checkpoint(
    make_config: MakeConfig,
    records_of: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    real_save = CheckpointFolder.save
    calls, saved = [], []

    def append(path: Path, record: dict[str, Any]) -> None:
        calls.append(record["step"])
        if 4 <= len(calls) <= 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append_json_line(path, record)

    def save(folder: CheckpointFolder, step: int, *rest: Any) -> Path:
        saved.append(step)
        assert records_of(config)[-1]["step"] == step, "a resume would lack records"
        return real_save(folder, step, *rest)

    monkeypatch.setattr(metrics, "append_json_line", append)
    monkeypatch.setattr(CheckpointFolder, "save", save)
    config = make_config()
    train(config)
    assert [record["step"] for record in records_of(config)] == list(range(1, 13))
    assert caplog.text.count("cannot be written") == 1 and saved[-1] == 12


@pytest.mark.slow
def test_out_of_memory_halves_the_micro_batch_down_to_one_sequence(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_loss, most, sizes = TransformerLM.loss, [2], list[int]()
    # Errors of Python, and of torch on a CPU and a GPU.
    on_cpu = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 B")
    on_gpu = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
    errors = itertools.cycle([MemoryError(), on_gpu, on_cpu])

    def loss(model: Any, ids: Tensor, *rest: Any) -> Tensor:
        if torch.is_grad_enabled():
            sizes.append(len(ids))
            if len(sizes) > 8 and len(ids) > most[0]:
                raise next(errors)
        return real_loss(model, ids, *rest)

    monkeypatch.setattr(TransformerLM, "loss", loss)
    changes = {"batch_size": 16, "micro_batch_size": 16, "num_steps": 12}
    config = make_config("run", {**changes, "checkpoints.every_steps": 4})
    assert train(config).steps == 12
    # Continued from the checkpoint of step 8, with eighths of the batch.
    assert sizes[:11] == [16] * 9 + [8, 4] and sizes[11:] == [2] * 8 * 4
    assert RunFolder(config.run_folder).read_config().micro_batch_size == 2
    most[0] = 0
    with pytest.raises(GroundupError, match="out of memory on cpu"):
        train(config.model_copy(update={"name": "none", "micro_batch_size": 2}))
    outcome = RunFolder(config.runs_folder / "none").read_outcome()
    assert outcome is not None and outcome.state == "failed"


def test_a_complete_state_is_saved_if_a_rank_is_lost(
    make_config: MakeConfig, finished: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(step: int, progress: float) -> None:
        if step == 5:
            raise LostRankError("a rank died")

    lost = make_config("lost")
    with pytest.raises(LostRankError):
        train(lost, callbacks=[AfterStep(lose)])
    assert CheckpointFolder(lost.run_folder / "checkpoints").steps() == [3, 5]
    train(lost, resume=True)
    assert compare_runs(finished.run_folder, lost.run_folder).differences == []
    # An update may have been interrupted halfway.
    torn = make_config("torn")
    update = Step._compute

    def tear(self: Step, batch: Batch) -> torch.Tensor:
        result = update(self, batch)
        if self.num_updates == 5:
            raise LostRankError("a rank died")
        return result

    monkeypatch.setattr(Step, "_compute", tear)
    with pytest.raises(LostRankError):
        train(torn)
    assert CheckpointFolder(torn.run_folder / "checkpoints").steps() == [3]
