"""Resuming and skipping on a GPU, where steps are queued; skipped without one."""

import json
import socket
import time
from typing import Any

import pytest
import torch

from groundup.checkpoint import CheckpointFolder
from groundup.errors import GroundupError
from groundup.model import TransformerLM
from groundup.runs.folder import RunFolder
from groundup.training.clock import Clock, ReplayClock
from groundup.training.loop import train
from groundup.training.step import Step
from groundup.training.verify import compare_runs

from .conftest import MakeConfig

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    pytest.mark.filterwarnings("ignore"),
]

on_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
    reason="float8 matmuls need a GPU from Hopper on",
)

# Larger than on the CPU, so that several programs contribute to a sum.
SHAPE = {
    "device": "cuda",
    "batch_size": 32,
    "model.context_length": 64,
    "model.d_model": 128,
    "model.num_layers": 2,
    "model.d_ff": 256,
}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("mode", ["off", "blocks", "model"])
@pytest.mark.parametrize(
    "precision", ["bfloat16", "float32", pytest.param("float8", marks=on_hopper)]
)
def test_resume_is_bitwise_exact_in_deterministic_mode(
    check_resume: Any, precision: str, mode: str, optimizer: str
) -> None:
    changes: dict[str, Any] = {**SHAPE, "deterministic": True, "precision": precision}
    check_resume({**changes, "compile": mode, "optimizer.name": optimizer})


@pytest.mark.parametrize("mode", ["off", "blocks", "model"])
def test_masked_documents_and_a_foreign_optimizer_resume_exactly(
    check_resume: Any, mode: str
) -> None:
    def nadam(model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.NAdam(model.parameters(), lr=3e-3)

    changes = {**SHAPE, "deterministic": True, "compile": mode, "precision": "bfloat16"}
    changes["model.document_separator"] = "auto"
    check_resume(changes, parts=lambda: {"optimizer": nadam})


def test_attention_and_losses_of_long_texts_are_deterministic(check_resume: Any) -> None:
    long = {"model.context_length": 512, "batch_size": 4}
    check_resume({**SHAPE, "deterministic": True, **long})


def test_a_timed_run_ends_in_its_time_and_replays_exactly(make_config: MakeConfig) -> None:
    changes: dict[str, Any] = {**SHAPE, "minutes": 0.5, "schedule.warmup_steps": 0.1}
    changes |= {"deterministic": True, "optimizer.ema_fraction": 0.1}
    in_steps = "num_steps schedule.warmup_steps evaluation.every_steps checkpoints.every_steps"
    changes |= dict.fromkeys(in_steps.split())
    timed, again = make_config("timed", changes), make_config("again", changes)
    began = time.monotonic()
    summary = train(timed)
    assert summary.is_finished and time.monotonic() - began < 40
    file = RunFolder(timed.run_folder).metrics_file
    train(again, clock=ReplayClock(file, stop_after=summary.steps // 2))
    assert train(again, resume=True, clock=ReplayClock(file)).steps == summary.steps
    assert compare_runs(timed.run_folder, again.run_folder).differences == []


@pytest.mark.parametrize("separator", [None, "auto"])
def test_gpu_and_cpu_train_alike(make_config: MakeConfig, separator: str | None) -> None:
    changes = {**SHAPE, "precision": "float32", "tf32": False, "compile": "off"}
    changes["model.document_separator"] = separator
    on_gpu = train(make_config("gpu", changes))
    on_cpu = train(make_config("cpu", {**changes, "device": "cpu"}))
    assert on_gpu.loss == pytest.approx(on_cpu.loss, rel=1e-3)
    assert on_gpu.validation_loss == pytest.approx(on_cpu.validation_loss, rel=1e-3)


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_skipped_steps_are_detected_and_the_run_stops_at_its_last_good_state(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, cuda_graph: bool
) -> None:
    # On the device, so that a captured CUDA graph reads it too.
    factor = torch.ones((), device="cuda")
    real_loss = TransformerLM.loss

    def loss(model: Any, *arguments: Any, **options: Any) -> torch.Tensor:
        return real_loss(model, *arguments, **options) * factor

    real_step = Step.__call__

    def step(self: Step, batch: Any, tick: Any) -> Any:
        factor.fill_(torch.nan if batch.step in (4, 7, 8, 9) else 1.0)
        return real_step(self, batch, tick)

    monkeypatch.setattr(TransformerLM, "loss", loss)
    monkeypatch.setattr(Step, "__call__", step)
    changes = {"max_skipped_steps": 3, "cuda_graph": cuda_graph, "checkpoints.every_steps": 0}
    config = make_config("run", {**SHAPE, **changes, "evaluation.every_steps": 0})
    with pytest.raises(GroundupError, match="after step 7, its last good one"):
        train(config)
    assert CheckpointFolder(config.run_folder / "checkpoints").steps() == [7]
    lines = RunFolder(config.run_folder).metrics_file.read_text().splitlines()
    skipped = [record["step"] for record in map(json.loads, lines) if record.get("skipped")]
    assert skipped == [5, 8, 9, 10]


def test_a_captured_step_is_bitwise_equal_to_a_plain_one(make_config: MakeConfig) -> None:
    changes = {**SHAPE, "deterministic": True, "precision": "bfloat16", "multi_token_weight": 0.3}
    plain = make_config("plain", {**changes, "cuda_graph": False})
    recorded = make_config("recorded", {**changes, "cuda_graph": True})
    train(plain)
    train(recorded)
    assert compare_runs(plain.run_folder, recorded.run_folder).differences == []


def test_too_little_memory_halves_the_micro_batch(make_config: MakeConfig) -> None:
    torch.cuda.set_per_process_memory_fraction(0.02)
    changes = {**SHAPE, "batch_size": 4096, "micro_batch_size": 4096, "num_steps": 2}
    config = make_config("run", {**changes, "compile": "off", "precision": "float32"})
    try:
        assert train(config).steps == 2
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    size = RunFolder(config.run_folder).read_config().micro_batch_size
    assert isinstance(size, int) and size < 4096


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_sharding_on_one_rank_trains_and_resumes_like_no_sharding(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, records_of: Any, optimizer: str
) -> None:
    changes = {**SHAPE, "optimizer.name": optimizer, "distributed.activation_checkpointing": True}
    whole = make_config("whole", changes)
    train(whole)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    names = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}
    for name, value in {**names, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    divided = make_config("divided", {**changes, "distributed.strategy": "fsdp"})
    train(divided, clock=Clock(stop_after=7))
    train(divided, resume=True)
    saved = CheckpointFolder(divided.run_folder / "checkpoints").newest()
    assert list(saved.path.glob("shard-*.safetensors")) and saved.step == divided.num_steps
    for found, expected in zip(records_of(divided), records_of(whole), strict=True):
        assert found["step"] == expected["step"]
        assert found.get("loss") == pytest.approx(expected.get("loss"), rel=1e-2)
