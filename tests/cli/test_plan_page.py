"""`groundup plan` on the screen, line by line, and what a probe of this machine adds to it."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from groundup.cli.main import main
from groundup.config import load_settings
from groundup.model.config import PRESETS
from groundup.planner import describe_cpu, step_flops, step_memory
from groundup.planner.quantities import show_bytes, show_count
from groundup.runs.config import RunConfig
from groundup.runtime import num_cores
from groundup.training import probe
from groundup.training.machine import Machine
from groundup.training.resolve import resolve


def test_the_tables_show_results_fractions_and_the_derivation(shell: Any) -> None:
    words = ["--num-steps", "400000", "--precision", "float32"]
    page = shell("plan", "--preset", "gpt2-xl", *words)
    for text in (
        "2,127,057,600",
        "4,513,336,524,800",
        "20,971,520,000",
        "fractions by size",
        "16,384",
        "18,034,335,744 x batch + 34,032,921,600 bytes",
        "19.5 TFLOP/s in float32 on one A100 80GB x 50.0% MFU = 9.75 TFLOP/s",
        "568,819,274 s = 6,583.6 days",
        "Hoffmann",
    ):
        assert text in page


def test_the_largest_batch_and_the_best_use_of_the_compute_are_shown(shell: Any) -> None:
    words = ["--preset", "gpt2-small", "--device", "RTX 4090", "--precision", "bfloat16"]
    found = shell.json("plan", *words)
    page = shell("plan", *words)
    title = "memory by the textbook: float32, every intermediate kept"
    largest = found["textbook_memory"]["largest_batch"]
    assert largest > 1 and rows_below(page, title)["largest batch in 24 GiB"] == f"{largest:,}"
    run, optimal = rows_below(page, "the run on one RTX 4090"), found["compute_optimal"]
    best = show_count(optimal["parameters_for_this_compute"])
    tokens = show_count(optimal["tokens_for_this_compute"])
    assert run["best use of this compute"] == f"{best} parameters on {tokens} tokens"
    enough = show_count(optimal["tokens_for_this_model"])
    steps = optimal["steps_for_this_model"]
    assert run["enough tokens for this model"].startswith(f"{enough} in {steps:,} steps, ")


def rows_below(page: str, title: str) -> dict[str, str]:
    """The table with that title, of names and values; other lines are left out."""
    lines = page.splitlines()
    below = lines[lines.index(title) + 1 :]
    table = itertools.takewhile(lambda line: line.startswith("  "), below)
    rows = [re.split(r" {2,}", line.strip(), maxsplit=1) for line in table]
    return {row[0]: row[1] for row in rows if len(row) == 2}


def test_memory_is_shown_by_component(capsys: pytest.CaptureFixture[str], shell: Any) -> None:
    words = ["--preset", "gpt2-small", "--device", "RTX 4090", "--precision", "bfloat16"]
    memory = shell.json("plan", *words)["memory"]
    assert main(["plan", *words]) == 0
    told = rows_below(capsys.readouterr().out, "memory of groundup train, bfloat16 on cuda")
    expected = {
        "weights": memory["weights"],
        "gradients": memory["gradients"],
        "optimizer state": memory["optimizer_state"],
        "copies of weights": memory["weight_copies"],
        **{
            f"a sequence: {name.replace('_', ' ')}": count
            for name, count in memory["activations_per_sequence"].items()
        },
        "a sequence: total": memory["bytes_per_sequence"],
    }
    assert {name: told.pop(name) for name in expected} == {
        name: show_bytes(count) for name, count in expected.items()
    }
    peak = f"{show_bytes(memory['peak_bytes'])} with micro-batches of {memory['micro_batch']:,}"
    assert told == {
        "largest micro-batch in 24 GiB": f"{memory['largest_micro_batch']:,}",
        "peak of a step": peak,
    }
    assert len(memory["activations_per_sequence"]) >= 6


def test_many_gpus_are_shown_strategy_by_strategy(shell: Any) -> None:
    words = ["--preset", "gpt2-xl", "--device", "RTX 4090", "--gpus", "16"]
    many = shell.json("plan", *words)["distributed"]
    page = shell("plan", *words)
    title = "each GPU of 16 x RTX 4090, 20 GB/s inside and 0.6 across machines"
    table, strategies = rows_below(page, title), many["strategies"].values()
    assert re.split(" {2,}", table["peak bytes"]) == [
        show_bytes(one["peak_bytes"]) for one in strategies
    ]
    assert table["fits"].split() == ["no", "no", "yes", "yes"]
    assert table["efficiency"].split() == [f"{one['efficiency']:.1%}" for one in strategies]
    run = rows_below(page, "the run on 16 x RTX 4090 with hsdp, as auto chooses")
    assert run["price"] == f"${many['dollars']:,.0f}"


@pytest.mark.parametrize(("num_sequences", "told"), [(8, "8 sequences"), (1, "1 sequence")])
def test_a_probe_is_shown_beside_what_was_predicted(
    shell: Any, monkeypatch: pytest.MonkeyPatch, num_sequences: int, told: str
) -> None:
    monkeypatch.setattr(probe, "time_steps", lambda config, machine: (0.5, 600_000_000))
    size, words = str(num_sequences), ["--preset", "tinystories", "--probe", "--batch-size"]
    words += [size, "--micro-batch-size", size]
    config = PRESETS["tinystories"]
    rate = step_flops(config, num_sequences) / 0.5
    peak = describe_cpu(num_cores(), 0).float32_flops_per_second
    page = shell("plan", *words)
    title = next(line for line in page.splitlines() if line.startswith("measured on CPU of "))
    predicted = step_memory(config).bytes_at(num_sequences)
    assert rows_below(page, title) == {
        f"a step of {told}": "500 ms",
        "speed": f"{num_sequences * 256 / 0.5:,.0f} tokens/s, {min(1, rate / peak):.1%} MFU",
        "its peak memory, measured": "600.0 MB",
        "its peak memory, predicted": show_bytes(predicted),
    }


def test_a_probe_plans_with_what_this_machine_did(shell: Any, small_config: Path) -> None:
    found = shell.json("plan", "--config", str(small_config), "--probe", "--precision", "float32")
    probe, duration = found["probe"], found["duration"]
    assert probe["micro_batch"] == found["memory"]["micro_batch"] == 2
    assert duration["mfu"] == probe["mfu"] > 0
    assert probe["tokens_per_second"] == pytest.approx(2 * 16 / probe["seconds_per_step"])
    assert probe["predicted_bytes"] > 0 and probe["peak_bytes"] >= 0
    assert duration["seconds"] == round(12 * probe["seconds_per_step"])


def test_a_plan_takes_the_micro_batches_that_train_takes(
    shell: Any, monkeypatch: pytest.MonkeyPatch, wide_batch: Path
) -> None:
    words = ("--config", str(wide_batch), "--precision", "float32")
    planned = shell.json("plan", *words)["memory"]
    in_training = resolve(
        load_settings(RunConfig, wide_batch), Machine.detect()
    ).config.sequences_in_memory
    assert planned["micro_batch"] == in_training
    # A probe that saw more memory than was planned makes them smaller, so that they fit.
    probe = plan_of_steps(shell, monkeypatch, (*words, "--probe"), 0)["probe"]
    peak_bytes = 40 * probe["predicted_bytes"]
    probed = plan_of_steps(shell, monkeypatch, (*words, "--probe"), peak_bytes)["memory"]
    assert 0 <= probed["micro_batch"] < planned["micro_batch"]
    assert probed["fits"] or probed["micro_batch"] == 0


@pytest.fixture
def wide_batch(tmp_path: Path) -> Path:
    """Settings of a run on the CPU whose steps have more tokens than a probe takes there."""
    sizes = {"vocab_size": 4_000, "context_length": 256, "d_model": 128, "num_layers": 4}
    settings = {
        "device": "cpu",
        "batch_size": 64,
        "model": {**sizes, "num_heads": 2},
        "data": {"shards": str(tmp_path / "none")},
    }
    file = tmp_path / "wide.yaml"
    file.write_text(yaml.safe_dump(settings), "utf-8")
    return file


def plan_of_steps(
    shell: Any,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    peak_bytes: int,
) -> dict[str, Any]:
    """The plan after a probe whose steps took a second and this memory."""
    monkeypatch.setattr(probe, "time_steps", lambda config, machine: (1.0, peak_bytes))
    return shell.json("plan", *words)
