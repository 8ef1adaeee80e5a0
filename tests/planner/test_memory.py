"""A step's memory against measured peaks, the micro-batch that follows, and strategies of GPUs."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from groundup.errors import ConfigError
from groundup.model import TransformerLM
from groundup.model.config import PRESETS, ModelConfig
from groundup.optim.build import build_optimizer
from groundup.optim.config import OptimizerConfig, OptimizerName
from groundup.planner import (
    Execution,
    MeasuredStep,
    Plan,
    get_accelerator,
    make_plan,
    step_memory,
)
from groundup.planner.distributed import plan_distributed
from groundup.planner.memory import check_fits, choose_micro_batch, choose_strategy, memory_options

H200 = Execution("cuda", "bfloat16")
CPU = Execution("cpu", "float32")


WEB: dict[str, Any] = PRESETS["tinystories"].model_dump() | {"vocab_size": 16_384}
WIDE = {"context_length": 512, "d_model": 1_024, "num_layers": 16, "d_ff": 2_752}
S1 = {"vocab_size": 10_000}
S2 = {"vocab_size": 50_304, "context_length": 1_024, "d_model": 768, "num_layers": 12}
S2 |= {"num_heads": 12, "d_ff": 2_048}
S3 = S2 | {"d_model": 1_024, "num_layers": 24, "num_heads": 16, "d_ff": 2_752}

# Settings, batch, optimizer, and the peak in bytes measured on an H200: in full runs
# (docs/experiments), and in benchmarks/train_step.py.
MEASURED: list[tuple[dict[str, Any], int, OptimizerName, int]] = [
    ({}, 1, "adamw", 603_200_000),
    ({}, 256, "adamw", 7_163_000_000),
    ({}, 7_168, "adamw", 132_225_200_000),
    ({}, 128, "muon", 3_794_800_000),
    (WIDE, 64, "muon", 23_388_300_000),
    ({"norm": "none"}, 128, "adamw", 3_761_200_000),
    ({"positions": "none"}, 128, "adamw", 3_845_000_000),
    ({"feed_forward": "silu", "d_ff": 2_016}, 128, "adamw", 3_862_000_000),
    ({"tie_embeddings": True, "d_ff": 2_712}, 128, "adamw", 4_944_000_000),
    ({"qk_norm": True}, 128, "adamw", 4_264_600_000),
    (S1, 512, "adamw", 10_708_843_008),
    (S2, 64, "adamw", 26_200_602_112),
    (S3, 32, "adamw", 36_913_019_392),
]


@pytest.mark.parametrize(("changes", "batch_size", "optimizer", "measured"), MEASURED)
def test_predicted_peaks_match_measurements_on_an_h200(
    changes: dict[str, Any], batch_size: int, optimizer: OptimizerName, measured: int
) -> None:
    memory = step_memory(ModelConfig(**(WEB | changes)), H200, optimizer, 150_109_880_320)
    assert 0.9 < memory.bytes_at(batch_size) / measured < 1.2


@pytest.mark.parametrize(
    "changes", [{}, {"num_kv_heads": 2}, {"feed_forward": "gelu"}, {"qk_norm": True}], ids=str
)
def test_predicted_activations_match_autograd(changes: dict[str, Any]) -> None:
    sizes = {"vocab_size": 50, "context_length": 32, "d_model": 128, "num_heads": 4}
    config = ModelConfig(**{**WEB, **sizes, **changes})
    model = TransformerLM.from_config(config)
    own = {one.untyped_storage().data_ptr() for one in [*model.parameters(), *model.buffers()]}

    def kept_bytes(batch_size: int) -> int:
        kept: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        ids = torch.zeros(batch_size, config.context_length, dtype=torch.long)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = model.loss(ids, ids)
        assert loss.requires_grad
        return sum(size for place, size in kept.items() if place not in own)

    per_sequence = (kept_bytes(5) - kept_bytes(2)) / 3
    assert 0.7 < step_memory(config).bytes_per_sequence / per_sequence < 1.4


@pytest.mark.parametrize("num_micro_batches", [1, 2, 3, 8, 64])
def test_the_exact_tree_keeps_one_sum_per_level(
    num_micro_batches: int,
) -> None:
    exact, fast = (step_memory(PRESETS["gpt2-small"], exact=one) for one in (True, False))
    waiting = math.ceil(math.log2(num_micro_batches))
    added = exact.bytes_at(4, num_micro_batches) - fast.bytes_at(4, num_micro_batches)
    assert added == max(0, waiting - 1) * exact.gradients
    # For a model with few activations, the optimizer step is the peak.
    tiny = replace(exact, activations_per_sequence={}, chunk_bytes=0, gradients=10**12)
    sums = max(1, waiting + 1) * tiny.gradients
    assert tiny.bytes_at(1, num_micro_batches) >= tiny.state_bytes + sums


def test_settings_change_the_stored_tensors() -> None:
    config = PRESETS["gpt2-small"]
    plain = step_memory(config, H200)
    assert step_memory(config, H200, ema=True).state_bytes == plain.state_bytes + plain.gradients
    less = step_memory(config, H200, checkpointing=True)
    assert less.bytes_per_sequence < plain.bytes_per_sequence / 4
    wide = step_memory(config, Execution("cuda", "float32"))
    assert wide.bytes_per_sequence == 2 * plain.bytes_per_sequence
    adapters = step_memory(config, H200, lora_rank=8)
    assert adapters.gradients < plain.gradients / 50
    assert adapters.weights == plain.weights + adapters.gradients


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_predicted_optimizer_state_matches_a_step(name: OptimizerName) -> None:
    config = PRESETS["tinystories"]
    model = TransformerLM.from_config(config, "meta")
    optimizer = build_optimizer(model, OptimizerConfig(name=name))
    for parameter in model.parameters():
        parameter.grad = parameter.detach()
    optimizer.step()
    found = sum(one.nbytes for state in optimizer.state.values() for one in state.values())
    assert found == pytest.approx(step_memory(config, optimizer=name).optimizer_state, abs=400)


def test_options_come_from_run_settings() -> None:
    settings: dict[str, Any] = {"optimizer.ema_fraction": 0.1, "tuning.lora_rank": 4}
    settings |= {"distributed.activation_checkpointing": True, "distributed.reduction": "fast"}
    settings["deterministic"] = True
    expected = {"ema": True, "checkpointing": True, "lora_rank": 4, "exact": False}
    assert memory_options(settings) == expected
    automatic = settings | {"distributed.reduction": "auto"}
    assert memory_options(automatic)["exact"]
    assert memory_options(automatic | {"deterministic": False})["exact"] is None


def test_micro_batches_divide_the_batch_and_fit() -> None:
    memory = step_memory(PRESETS["gpt2-small"], H200)
    for gigabytes in (8, 80):
        size = choose_micro_batch(memory, 96, gigabytes * 10**9)
        assert 96 % size == 0
        limit = 0.9 * gigabytes * 10**9
        larger = [n for n in range(size + 1, 97) if 96 % n == 0]
        assert memory.bytes_at(size, 96 // size) <= limit
        assert all(memory.bytes_at(n, 96 // n) > limit for n in larger)
    assert choose_micro_batch(memory, 96, 10**9) == 0
    cpu = step_memory(PRESETS["gpt2-small"], CPU)
    usable = [one.usable_bytes(1_000) for one in (memory, memory.shard(2), cpu)]
    assert usable == [900, 800, 600]
    with pytest.raises(ConfigError, match="smaller model"):
        check_fits(memory, 0, 10**9)


def test_cpu_micro_batches_are_limited_by_memory_and_speed() -> None:
    memory = step_memory(PRESETS["tinystories"], CPU, exact=False)
    gigabyte = 1 << 30
    chosen = [choose_micro_batch(memory, 1 << 16, half * gigabyte // 2) for half in range(2, 64)]
    # 16 sequences are 4,096 tokens.
    assert sorted(chosen) == chosen and chosen[0] < 16 and 16 in chosen
    assert memory.bytes_at(chosen[-1], 2) <= 16 * gigabyte


def test_measured_steps_correct_the_micro_batch() -> None:
    memory = step_memory(PRESETS["gpt2-small"], H200)
    measured = MeasuredStep(8, round(1.6 * memory.bytes_at(8)))
    corrected = memory.corrected(measured)
    assert corrected.bytes_at(8) == pytest.approx(measured.peak_bytes)
    h100, tight = get_accelerator("H100"), 24 * 10**9
    assert choose_micro_batch(corrected, 64, tight) < choose_micro_batch(memory, 64, tight)
    device = h100._replace(memory_bytes=tight)
    plan = make_plan(PRESETS["gpt2-small"], device, batch_size=64, num_steps=1, measured=measured)
    assert plan.micro_batch == choose_micro_batch(corrected, 64, tight) and plan.fits
    sizes = {"vocab_size": 64, "context_length": 16, "d_model": 16, "num_layers": 1}
    tiny = step_memory(ModelConfig(**sizes, num_heads=1))
    assert tiny.corrected(MeasuredStep(1, 10**9)).scale == 1


TINY = ModelConfig(vocab_size=16, context_length=8, d_model=4, num_layers=2, num_heads=2, d_ff=8)
# Embedding and output 2 · 16 · 4, attention 2 · 4 · 4², feed-forward 2 · 3 · 4 · 8, norms 5 · 4.
TINY_BYTES = 4 * (128 + 128 + 192 + 20)


def plan_of(config: ModelConfig, device: str, batch_size: int) -> Plan:
    return make_plan(config, get_accelerator(device), batch_size=batch_size, num_steps=10)


def test_bytes_sent_match_a_manual_count() -> None:
    # Four GPUs in two machines, 16 sequences each, 8 at a time.
    plan = plan_of(TINY, "H200", 64)
    found = plan_distributed(plan, num_gpus=4, gpus_per_machine=2, micro_batch=8)
    sent = {
        name: (one["sent_inside_bytes"], one["sent_across_bytes"])
        for name, one in found["strategies"].items()
    }
    ring = 3 / 4 * TINY_BYTES
    assert sent["ddp"] == sent["ddp, exact"] == (ring, ring)
    assert sent["fsdp"] == (2 * 3 * ring / 2, 2 * 3 * ring / 2)
    # Three ring passes within the machine, and one all-reduce of half of the gradients between two.
    assert sent["hsdp"] == (2 * 3 * TINY_BYTES / 2, TINY_BYTES / 2)


def test_one_gpu_sends_nothing_and_matches_its_own_plan() -> None:
    plan = plan_of(PRESETS["gpt2-small"], "H200", 64)
    found = plan_distributed(plan, num_gpus=1)
    names = ("micro_batch", "peak_bytes", "sent_inside_bytes", "sent_across_bytes", "efficiency")
    for strategy in ("ddp", "fsdp", "hsdp"):
        one = [found["strategies"][strategy][name] for name in names]
        assert one == [plan.micro_batch, plan.peak_bytes, 0, 0, 1]
    assert found["seconds"] == round(plan.duration.seconds)
    clusters = (("H200", 12, "gpus-per-machine"), ("H200", 24, "batch-size"), ("M4 Max", 2, "gpus"))
    for device, num_gpus, noun in clusters:
        with pytest.raises(ConfigError, match=noun):
            plan_distributed(plan_of(PRESETS["gpt2-small"], device, 64), num_gpus=num_gpus)


def test_exposed_communication_is_what_exceeds_computation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_of(PRESETS["gpt2-xl"], "H100", 1_024)
    fast = plan_distributed(plan, num_gpus=64)["strategies"]
    monkeypatch.setattr("groundup.planner.distributed.link_rates", lambda _: (450e9, 0.6e9))
    slow = plan_distributed(plan, num_gpus=64)
    assert fast["ddp"]["exposed_milliseconds"] == 0 and fast["ddp"]["efficiency"] == 1
    exact = fast["ddp, exact"]
    assert exact["exposed_milliseconds"] == exact["communication_milliseconds"] > 0
    ddp = slow["strategies"]["ddp"]
    # Communication takes longer than computation, so the step takes as long as communication.
    assert ddp["step_milliseconds"] == pytest.approx(ddp["communication_milliseconds"])
    assert slow["strategies"]["hsdp"]["efficiency"] > ddp["efficiency"]
    assert json.loads(json.dumps(slow)) == slow
    seconds = 10 * slow["strategies"][slow["strategy"]]["step_milliseconds"] / 1e3
    assert slow["seconds"] == round(seconds)
    assert slow["dollars"] == pytest.approx(64 * seconds / 3600 * 2.95, abs=0.01)


def test_shards_are_a_fraction_of_the_state_plus_gathered_blocks() -> None:
    memory = step_memory(PRESETS["gpt2-xl"], Execution("cuda", "bfloat16"), exact=True)
    part = memory.shard(8)
    for name in ("weights", "gradients", "optimizer_state"):
        assert getattr(part, name) == getattr(memory, name) // 8
    outside = 2 * 50_257 * 1_600
    block = (2_127_057_600 - outside) // 48
    assert part.gathered_bytes == 4 * (outside + 3 * block) and memory.gathered_bytes == 0
    assert not part.is_exact and memory.shard(1) == memory


@pytest.mark.parametrize(
    ("device", "num_gpus", "expected"),
    [("H200", 16, "ddp"), ("RTX 4090", 8, "fsdp"), ("RTX 4090", 16, "hsdp")],
)
def test_auto_prefers_ddp_then_hsdp_then_fsdp(device: str, num_gpus: int, expected: str) -> None:
    memory = step_memory(PRESETS["gpt2-xl"], Execution("cuda", "bfloat16"))
    memory_bytes = get_accelerator(device).memory_bytes
    chosen = choose_strategy(
        memory, 16, memory_bytes, num_gpus=num_gpus, gpus_per_machine=8, micro_batch=1
    )
    assert chosen == expected
