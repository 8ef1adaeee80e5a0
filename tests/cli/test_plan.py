"""`groundup plan`: the costs of a preset, of a settings file, and of flags, as JSON."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from groundup.config import load_settings
from groundup.model.config import ModelConfig
from groundup.planner import step_memory
from groundup.planner.quantities import show_bytes
from groundup.runs.config import RunConfig
from groundup.training import probe
from groundup.training.machine import Machine
from groundup.training.resolve import planned_memory, resolve_device


def test_gpt2_xl_has_known_costs_that_flags_change(shell: Any) -> None:
    narrow = shell.json("plan", "--preset", "gpt2-xl", "--model.d-ff", "4288")
    assert narrow["parameters"]["feed_forward"] == 48 * 3 * 1_600 * 4_288
    long = ["--num-steps", "400000", "--precision", "float32"]
    found = shell.json("plan", "--preset", "gpt2-xl", *long)
    assert found["parameters"]["total"] == 2_127_057_600
    assert found["weight_bytes"] == 8_508_230_400
    assert found["forward_flops"]["total"] == 4_513_336_524_800
    assert found["compute_optimal"]["steps_for_this_model"] == -(-20 * 2_127_057_600 // 1_024**2)
    duration, textbook = found["duration"], found["textbook_memory"]
    assert (duration["num_steps"], duration["batch_size"]) == (400_000, 1_024)
    assert (duration["seconds"], duration["days"]) == (568_819_274, pytest.approx(6_583.56))
    assert (textbook["fixed_bytes"], textbook["largest_batch"]) == (34_032_921_600, 2)
    page = " ".join(shell("plan", "--preset", "gpt2-xl", *long, "--gpus", "16").split())
    for text in (
        "2,127,057,600",
        "4,513,336,524,800",
        "projections 20,971,520,000",
        "fractions by size",
        "18,034,335,744 x batch + 34,032,921,600 bytes",
        "19.5 TFLOP/s in float32 on one A100 80GB x 50.0% MFU = 9.75 TFLOP/s",
        "568,819,274 s = 6,583.6 days",
        "Hoffmann",
        "each GPU with fsdp",
        f"optimizer state bytes {show_bytes(2 * found['weight_bytes'])}",
    ):
        assert text in page
    words = ["--tokens", "1.0e+9", "--mfu", "5e-1", "--batch-size", "3"]
    found = shell.json("plan", *words)["duration"]
    assert found["num_steps"] == 1_302_084 and found["mfu"] == 0.5


SETTINGS: dict[str, Any] = {
    "num_steps": 50,
    "batch_size": 24,
    "micro_batch_size": 6,
    "precision": "bfloat16",
    "optimizer": {"name": "muon"},
    "model": {"context_length": 128, "d_model": 64, "num_layers": 2, "num_heads": 4},
}


def test_the_settings_file_applies_unless_a_flag_overrides_it(shell: Any, tmp_path: Path) -> None:
    flags = "--batch-size 12 --micro-batch-size 3 --num-steps 70 --precision tf32 --optimizer adamw"
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(SETTINGS), "utf-8")
    config = ModelConfig(**SETTINGS["model"])
    cases: Any = (
        ([], (24, 6, 50, "bfloat16", "muon", 0.4)),
        ([*flags.split(), "--mfu", "0.3"], (12, 3, 70, "tf32", "adamw", 0.3)),
    )
    for words, expected in cases:
        batch, micro_batch, steps, precision, optimizer, mfu = expected
        found = shell.json("plan", "--config", str(file), "--device", "h200", *words)
        duration, memory = found["duration"], found["memory"]
        assert duration["device"] == "H200"
        assert (duration["batch_size"], memory["micro_batch"]) == (batch, micro_batch)
        assert (duration["num_steps"], duration["num_tokens"]) == (steps, steps * batch * 128)
        assert (duration["precision"], duration["mfu"]) == (precision, mfu)
        assert memory["precision"] == ("bfloat16" if precision == "bfloat16" else "float32")
        memory_of_state = step_memory(config, optimizer=optimizer)
        state_bytes = memory["weights"] + memory["gradients"] + memory["optimizer_state"]
        assert state_bytes == memory_of_state.state_bytes + memory_of_state.gradients


def test_planned_memory_equals_that_of_training(shell: Any, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    settings = {"device": "cpu", "precision": "float32", "optimizer": {"ema_fraction": 0.1}}
    settings["distributed"] = {"activation_checkpointing": True, "reduction": "fast"}
    settings |= {"start_from": "run", "tuning": {"lora_rank": 4, "chats": ["chats.jsonl"]}}
    file.write_text(yaml.safe_dump(settings), "utf-8")
    expected = planned_memory(
        resolve_device(load_settings(RunConfig, file)), Machine.detect().memory_bytes
    )
    found = shell.json("plan", "--config", str(file))["memory"]
    for part in ("weights", "gradients", "optimizer_state", "weight_copies"):
        assert found[part] == getattr(expected, part)
    assert found["activations_per_sequence"] == expected.activations_per_sequence


def test_a_probe_is_shown_next_to_the_prediction(
    shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "time_steps", lambda config, machine: (0.5, 600_000_000))
    words = "--preset tinystories --probe --batch-size 8 --micro-batch-size 8".split()
    found = shell.json("plan", *words)
    assert found["probe"]["seconds_per_step"] == 0.5 and found["duration"]["device"][:3] == "CPU"
    assert found["duration"]["mfu"] == pytest.approx(found["probe"]["mfu"], abs=1e-3)
    page = shell("plan", *words)
    assert "measured on this machine" in page and "500 ms" in page and "600.0 MB" in page
