"""`groundup plan`: the costs of a preset, of a settings file, and of flags, as JSON."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from groundup.cli.main import main
from groundup.config import load_settings
from groundup.model.config import ModelConfig
from groundup.planner import count_parameters, step_memory
from groundup.planner.flops import update_flops
from groundup.runs.config import RunConfig
from groundup.training.machine import Machine
from groundup.training.resolve import planned_memory, resolve_device


def test_gpt2_xl_has_its_known_costs_and_flags_change_them(shell: Any) -> None:
    narrow = shell.json("plan", "--preset", "gpt2-xl", "--model.d-ff", "4288")
    assert narrow["parameters"]["feed_forward"] == 48 * 3 * 1_600 * 4_288
    long = ["--num-steps", "400000", "--precision", "float32"]
    found = shell.json("plan", "--preset", "gpt2-xl", *long)
    assert found["parameters"]["total"] == 2_127_057_600
    assert found["weight_bytes"] == 8_508_230_400
    flops = found["forward_flops"]
    assert flops["total"] == 4_513_336_524_800
    assert flops["output_head"] == 164_682_137_600
    assert flops["per_layer"] == {
        "projections": 20_971_520_000,
        "attention": 6_710_886_400,
        "feed_forward": 62_914_560_000,
    }
    assert found["shares"]["by_context"]["16384"]["attention"] > 0.55
    assert list(found["shares"]["by_size"])[::3] == ["gpt2-small", "gpt2-xl"]
    duration, textbook = found["duration"], found["textbook_memory"]
    assert (duration["num_steps"], duration["batch_size"]) == (400_000, 1_024)
    assert (duration["seconds"], duration["days"]) == (568_819_274, pytest.approx(6_583.56))
    assert textbook["bytes_per_sequence"] == 18_034_335_744
    assert (textbook["fixed_bytes"], textbook["largest_batch"]) == (34_032_921_600, 2)


def test_a_settings_file_says_what_is_planned(shell: Any, small_config: Path) -> None:
    found = shell.json("plan", "--config", str(small_config), "--device", "h200")
    assert found["duration"]["num_steps"] == 12 and found["duration"]["batch_size"] == 2
    assert found["model"]["vocab_size"] == 300
    assert (found["duration"]["device"], found["duration"]["precision"]) == ("H200", "bfloat16")
    # Of the shards that the file names.
    assert found["duration"]["num_epochs"] > 0


@pytest.mark.parametrize(
    "words",
    [["--tokens", "1e9"], ["--tokens=1.0e+9"], ["--tokens", "1_000_000_000"]],
    ids=" ".join,
)
def test_tokens_stand_for_steps_and_may_have_an_exponent(shell: Any, words: list[str]) -> None:
    found = shell.json("plan", *words, "--mfu", "5e-1", "--batch-size", "3")
    assert found["duration"]["num_steps"] == 1_302_084
    assert found["duration"]["num_tokens"] == 1_302_084 * 3 * 256
    assert found["duration"]["mfu"] == 0.5


@pytest.mark.parametrize("number", ["1.5e0", "abc", "1e3x", "1e999"])
def test_what_is_no_whole_number_is_said(shell: Any, number: str) -> None:
    for flag in ("--tokens", "--batch-size"):
        assert shell.fails("plan", flag, number) == f"{flag} must be an integer, got {number!r}"


def test_minutes_stand_for_steps(shell: Any) -> None:
    words = ["--preset", "tinystories", "--batch-size", "128", "--device", "H200"]
    words += ["--precision", "bfloat16", "--mfu", "0.4", "--minutes", "10"]
    duration = shell.json("plan", *words, "--corpus-tokens", "1000000")["duration"]
    # 600 s at 0.4 · 989.4 TFLOP/s, and 3 · 128 · 9,533,652,992 operations a step.
    assert duration["num_steps"] == int(600 * 0.4 * 989.4e12 / 3_660_922_748_928)
    assert duration["num_tokens"] == duration["num_steps"] * 128 * 256
    assert duration["num_epochs"] == pytest.approx(duration["num_tokens"] / 1e6, abs=1e-3)
    assert duration["seconds"] == 600


def test_the_table_of_devices_has_rates_prices_and_sources(
    capsys: pytest.CaptureFixture[str], shell: Any
) -> None:
    page = shell("plan", "--devices")
    texts = ("A100 80GB", "M4 MAX", "CPU of", "989.4", "NVIDIA H200 data sheet", "2026-")
    for text in texts:
        assert text in page
    assert main(["plan", "--devices", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["H200"]["float32_flops_per_second"] == 66.9e12
    assert rows["H200"]["price"]["dollars_per_hour"] == 4.0
    for row in rows.values():
        numbers = [value for name, value in row.items() if name.endswith(("second", "bytes"))]
        assert numbers and all(value is None or type(value) is int for value in numbers)


def test_what_does_not_fit_and_what_has_no_price_is_said(shell: Any) -> None:
    page = shell("plan", "--preset", "gpt2-xl", "--device", "M1")
    assert "does not fit: one sequence at a time takes" in page
    assert "none in the table: give --price-per-hour" in page


def test_another_device_is_planned_for_by_its_peak_and_memory(shell: Any) -> None:
    words = ["--device", "abacus", "--peak-tflops", "0.5", "--memory-gb", "16"]
    found = shell.json("plan", *words, "--price-per-hour", "0.1", "--mfu", "0.25")
    assert found["duration"]["device"] == "abacus"
    assert found["duration"]["peak_flops_per_second"] == 500_000_000_000
    assert found["memory"]["memory_bytes"] == 16_000_000_000
    hours = found["duration"]["seconds"] / 3600
    assert found["duration"]["dollars"] == pytest.approx(0.1 * hours, abs=0.01)


@pytest.mark.parametrize("words", [["V100"], ["V100", "--memory-gb", "8"], ["cpu"]], ids=" ".join)
def test_another_peak_gives_a_device_no_precision_that_it_lacks(
    shell: Any, words: list[str]
) -> None:
    found = shell.json("plan", "--device", *words, "--peak-tflops", "20")["duration"]
    assert (found["precision"], found["peak_flops_per_second"]) == ("float32", 20 * 10**12)


@pytest.mark.parametrize(
    "words", [["--device", "H200"], ["--mfu", "0.4"], ["--memory-gb=8"]], ids=" ".join
)
def test_a_probe_takes_no_guesses(shell: Any, words: list[str]) -> None:
    complaint = shell.fails("plan", "--preset", "quickstart", "--probe=true", *words)
    assert complaint.startswith("--probe measures this machine: leave " + words[0].split("=")[0])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--preset", "gpt2-xxl"], "unknown preset 'gpt2-xxl': did you mean gpt2-xl?"),
        (["--preset", "gpt2-xl", "--config", "a.yaml"], "both say what to plan: give one"),
        (["--config", "nowhere.yaml"], "nowhere.yaml does not exist"),
        (["--model.d-model", "510"], "d_model 510 cannot be split into num_heads 16 equal parts"),
        (["--model.d-model", "48"], "gives heads of odd size 3: choose an even one"),
        (
            ["--device", "H20"],
            "device 'H20' is not in the planner's table: did you",
        ),
        (["--mfu", "50"], "mfu is 50, but it is a fraction"),
        (["--batch-size", "0"], "--batch-size is 0, but must be at least 1"),
        (["--batch-size", "8", "--micro-batch-size", "3"], "choose a divisor of the batch size"),
        (["--memory-gb", "-1"], "--memory-gb is -1, but must be above 0"),
        (["--memory-gb", "inf"], "--memory-gb must be a finite number, got 'inf'"),
        (["--peak-tflops", "nan"], "--peak-tflops must be a finite number, got 'nan'"),
        (["--minutes", "0"], "--minutes is 0, but must be above 0"),
        (["--minutes", "1e400"], "--minutes must be a finite number, got '1e400'"),
        (["--num-steps", "1" + 400 * "0"], "beyond 64 bits: give a smaller number"),
        (["--model.vocab-size", "1" + 400 * "0"], "beyond 64 bits: give a smaller number"),
        (["--minutes", "1", "--tokens", "9"], "--tokens and --minutes both say how long the run"),
        (["--preset", "gpt2-xl", "--minutes", "1"], "one step takes 88.9 s on A100 80GB"),
        (["--device", "V100", "--precision", "bfloat16"], "V100 has no bfloat16 of its own"),
        (["--preest", "gpt2-xl"], "did you mean --preset?"),
        (["--gpus", "0"], "--gpus is 0, but must be at least 1"),
        (["--gpus", "3"], "a batch of 1024 sequences cannot be divided among 3 GPUs"),
        (["--gpus", "12"], "12 GPUs do not fill machines of 8: give --gpus a multiple of"),
        (["--gpus", "8", "--gpus-per-machine", "-1"], "--gpus-per-machine is -1, but must be"),
        (["--across-gb", "5"], "--across-gb is for a plan of many devices: add --gpus"),
        (["--device", "M4 Max", "--gpus", "2"], "torch connects no GPUs like M4 MAX"),
    ],
)
def test_a_mistake_is_one_line(shell: Any, words: list[str], complaint: str) -> None:
    assert complaint in shell.fails("plan", *words)


SETTINGS = {
    "num_steps": 50,
    "batch_size": 24,
    "micro_batch_size": 6,
    "precision": "bfloat16",
    "optimizer": {"name": "muon"},
    "model": {"context_length": 128, "d_model": 64, "num_layers": 2, "num_heads": 4},
}


DECIDED: dict[str, Any] = {
    "batch": 24,
    "micro_batch": 6,
    "steps": 50,
    "precision": "bfloat16",
    "optimizer": "muon",
    "mfu": 0.4,
}


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ([], {}),
        (["--batch-size", "12"], {"batch": 12}),
        (["--micro-batch-size", "3"], {"micro_batch": 3}),
        (["--num-steps", "70"], {"steps": 70}),
        (["--tokens", "30721"], {"steps": 11}),
        (["--precision", "float32"], {"precision": "float32"}),
        (["--precision", "tf32"], {"precision": "tf32"}),
        (["--optimizer", "adamw"], {"optimizer": "adamw"}),
        (["--optimizer", "sgd"], {"optimizer": "sgd"}),
        (["--mfu", "0.3"], {"mfu": 0.3}),
    ],
    ids=str,
)
def test_the_settings_file_decides_where_no_flag_does(
    shell: Any, tmp_path: Path, words: list[str], changes: dict[str, Any]
) -> None:
    batch, micro_batch, steps, precision, optimizer, mfu = (DECIDED | changes).values()
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(SETTINGS), "utf-8")
    found = shell.json("plan", "--config", str(file), "--device", "H200", *words)
    duration, memory = found["duration"], found["memory"]
    assert (duration["batch_size"], memory["micro_batch"]) == (batch, micro_batch)
    assert (duration["num_steps"], duration["num_tokens"]) == (steps, steps * batch * 128)
    assert (duration["precision"], duration["mfu"]) == (precision, mfu)
    assert memory["precision"] == ("bfloat16" if precision == "bfloat16" else "float32")
    config = ModelConfig(context_length=128, d_model=64, num_layers=2, num_heads=4)
    assert found["update_flops"] == update_flops(config, optimizer)
    state_bytes = memory["weights"] + memory["gradients"] + memory["optimizer_state"]
    expected = step_memory(config, optimizer=optimizer)
    assert state_bytes == expected.state_bytes + expected.gradients


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": {"average_over": 0.1}},
        {"distributed": {"recompute": True, "reduction": "fast"}},
        {"start_from": "run", "tuning": {"lora_rank": 4, "chats": ["chats.jsonl"]}},
    ],
    ids=str,
)
def test_a_settings_file_is_planned_with_the_memory_that_training_counts_on(
    shell: Any, tmp_path: Path, changes: dict[str, Any]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({"device": "cpu", "precision": "float32"} | changes), "utf-8")
    expected = planned_memory(
        resolve_device(load_settings(RunConfig, file)), Machine.detect().memory_bytes
    )
    found = shell.json("plan", "--config", str(file))["memory"]
    for part in ("weights", "gradients", "optimizer_state", "weight_copies"):
        assert found[part] == getattr(expected, part)
    assert found["activations_per_sequence"] == expected.activations_per_sequence


def test_a_run_on_a_cpu_is_planned_at_the_mfu_that_training_expects_there(
    shell: Any, small_config: Path
) -> None:
    for words, mfu in (([], 0.5), (["--device", "h200"], 0.4), (["--device", "CPU"], 0.5)):
        found = shell.json("plan", "--config", str(small_config), *words)
        assert found["duration"]["mfu"] == mfu


def test_many_gpus_are_planned_beside_one(shell: Any, tmp_path: Path) -> None:
    words = ["--preset", "gpt2-small", "--device", "H200", "--batch-size", "512"]
    alone = shell.json("plan", *words)
    found = shell.json("plan", *words, "--gpus", "64", "--across-gb", "12.5")
    many = found.pop("distributed")
    assert found == alone
    assert (many["num_gpus"], many["num_machines"], many["strategy"]) == (64, 8, "ddp")
    assert many["inside_bytes_per_second"] == 370 * 10**9
    assert many["across_bytes_per_second"] == 12_500_000_000
    ddp = many["strategies"]["ddp"]
    sent = ddp["sent_inside_bytes"] + ddp["sent_across_bytes"]
    assert sent == pytest.approx(2 * 63 / 64 * 4 * found["parameters"]["total"], abs=2)
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(SETTINGS | {"distributed": {"reduce_dtype": "bfloat16"}}))
    flags = ["--config", str(file), "--device", "H200", "--gpus", "4", "--gpus-per-machine", "2"]
    many = shell.json("plan", *flags)["distributed"]
    assert many["num_machines"] == 2 and many["strategies"]["ddp"]["micro_batch"] == 6
    total = sum(many["strategies"]["ddp"][f"sent_{where}_bytes"] for where in ("inside", "across"))
    config = ModelConfig(context_length=128, d_model=64, num_layers=2, num_heads=4)
    assert total == 2 * 3 / 4 * 2 * sum(count_parameters(config).values())


# Fractions, and numbers that a person reads; settings are as they were given.
NO_INTEGERS = {
    "duration.mfu",
    "duration.days",
    "duration.dollars",
    "duration.num_epochs",
    "distributed.dollars",
    "compute_optimal.tokens_per_parameter",
}


@pytest.mark.parametrize(
    "words",
    [
        ["--preset", "gpt2-xl", "--device", "cpu", "--optimizer", "muon"],
        ["--preset", "gpt2-xl", "--device", "H100", "--gpus", "32"],
        ["--preset", "tinystories", "--device", "M4 Max", "--minutes", "600"],
        ["--device", "abacus", "--peak-tflops", "0.7", "--memory-gb", "0.3"],
    ],
    ids=" ".join,
)
def test_counts_bytes_and_operations_are_integers_without_exponents(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(["plan", *words, "--json", "--corpus-tokens", "1_000_000"]) == 0
    found = json.loads(capsys.readouterr().out, parse_float=Broken)
    paths = {path for path, value in leaves(found) if isinstance(value, Broken)}
    paths = {path for path in paths if not path.startswith(("model.", "shares."))}
    assert {path for path in paths if not ("milliseconds" in path or "efficiency" in path)} <= (
        NO_INTEGERS
    )
    assert not [
        value for path, value in leaves(found) if path != "model.norm_eps" and is_short(value)
    ]
    for name in ("update_flops", "flops_per_step", "weight_bytes"):
        assert type(found[name]) is int
    for name in ("textbook_memory", "memory", "compute_optimal", "parameters"):
        assert any(type(value) is int and value > 0 for _, value in leaves(found[name]))


class Broken(str):
    """A number of a JSON text that is not whole, as it is written there."""


def is_short(value: object) -> bool:
    return isinstance(value, Broken) and "e" in value.lower()


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, f"{path}.{name}".lstrip("."))
    else:
        yield path, value


def test_what_is_taken_for_granted_is_said_with_the_flags_that_change_it(shell: Any) -> None:
    page = shell("plan", "--preset", "gpt2-small")
    assert "GPT-2 itself has 124 million parameters" in page
    for flag in ("--device", "--precision", "--mfu", "--batch-size", "--tokens"):
        assert f"({flag}" in page
    assert "bfloat16 (--precision)" in page
    found = shell.json("plan", "--preset", "gpt2-small")
    tokens = found["duration"]["num_tokens"]
    assert tokens == pytest.approx(20 * found["parameters"]["total"], rel=1e-3)
