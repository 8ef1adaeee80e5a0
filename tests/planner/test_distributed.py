"""Strategies for several GPUs: bytes sent, exposed communication, and the choice of auto."""

import json

import pytest

from groundup.errors import ConfigError
from groundup.model.config import PRESETS, ModelConfig
from groundup.planner import Execution, Plan, get_accelerator, make_plan, step_memory
from groundup.planner.distributed import plan_distributed
from groundup.planner.memory import choose_strategy

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
