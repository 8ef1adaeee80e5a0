"""`groundup plan`: what a settings file decides and flags change, and figures as whole numbers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from groundup.cli.main import main
from groundup.model.config import ModelConfig
from groundup.planner import training_state_bytes
from groundup.planner.flops import OptimizerName, update_flops


def figures(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["plan", *words, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


SETTINGS = {
    "num_steps": 50,
    "batch_size": 24,
    "micro_batch_size": 6,
    "precision": "bfloat16",
    "optimizer": {"name": "muon", "orthogonalization_steps": 7},
    "model": {"context_length": 128, "d_model": 64, "num_layers": 2, "num_heads": 4},
}


@pytest.mark.parametrize(
    ("words", "batch", "micro_batch", "steps", "precision", "optimizer", "mfu"),
    [
        ([], 24, 6, 50, "bfloat16", "muon", 0.4),
        (["--batch-size", "12"], 12, 6, 50, "bfloat16", "muon", 0.4),
        (["--micro-batch-size", "3"], 24, 3, 50, "bfloat16", "muon", 0.4),
        (["--num-steps", "70"], 24, 6, 70, "bfloat16", "muon", 0.4),
        (["--tokens", "30721"], 24, 6, 11, "bfloat16", "muon", 0.4),
        (["--precision", "float32"], 24, 6, 50, "float32", "muon", 0.4),
        (["--precision", "tf32"], 24, 6, 50, "tf32", "muon", 0.4),
        (["--optimizer", "adamw"], 24, 6, 50, "bfloat16", "adamw", 0.4),
        (["--optimizer", "sgd"], 24, 6, 50, "bfloat16", "sgd", 0.4),
        (["--mfu", "0.3"], 24, 6, 50, "bfloat16", "muon", 0.3),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_the_settings_file_decides_where_no_flag_does(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    words: list[str],
    batch: int,
    micro_batch: int,
    steps: int,
    precision: str,
    optimizer: OptimizerName,
    mfu: float,
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(SETTINGS), "utf-8")
    found = figures(capsys, "--config", str(file), "--device", "H200", *words)
    duration, memory = found["duration"], found["memory"]
    assert (duration["batch_size"], memory["micro_batch"]) == (batch, micro_batch)
    assert (duration["num_steps"], duration["num_tokens"]) == (steps, steps * batch * 128)
    assert (duration["precision"], duration["mfu"]) == (precision, mfu)
    assert memory["precision"] == ("bfloat16" if precision == "bfloat16" else "float32")
    config = ModelConfig(context_length=128, d_model=64, num_layers=2, num_heads=4)
    assert found["update_flops"] == update_flops(config, optimizer, 7)
    state_bytes = memory["weights"] + memory["gradients"] + memory["optimizer_state"]
    assert state_bytes == training_state_bytes(config, optimizer)


def test_a_run_on_a_cpu_is_planned_at_the_share_that_training_expects_there(
    capsys: pytest.CaptureFixture[str], small_config: Path
) -> None:
    for words, share in (([], 0.5), (["--device", "h200"], 0.4), (["--device", "CPU"], 0.5)):
        found = figures(capsys, "--config", str(small_config), *words)
        assert found["duration"]["mfu"] == share


# Shares, and figures that a person reads; settings are as they were given.
NO_WHOLE_NUMBERS = {
    "duration.mfu",
    "duration.days",
    "duration.dollars",
    "duration.num_epochs",
    "compute_optimal.tokens_per_parameter",
}


@pytest.mark.parametrize(
    "words",
    [
        ["--preset", "gpt2-xl"],
        ["--preset", "gpt2-xl", "--device", "cpu", "--optimizer", "muon"],
        ["--preset", "tinystories", "--device", "M4 Max", "--minutes", "600"],
        ["--device", "abacus", "--peak-tflops", "0.7", "--memory-gb", "0.3"],
    ],
    ids=" ".join,
)
def test_counts_bytes_and_operations_are_whole_numbers_without_exponents(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(["plan", *words, "--json", "--corpus-tokens", "1_000_000"]) == 0
    found = json.loads(capsys.readouterr().out, parse_float=Broken)
    paths = {path for path, value in leaves(found) if isinstance(value, Broken)}
    assert {path for path in paths if not path.startswith(("model.", "shares."))} <= (
        NO_WHOLE_NUMBERS
    )
    assert not [
        value for path, value in leaves(found) if path != "model.norm_eps" and is_short(value)
    ]
    for name in ("update_flops", "flops_per_step", "weight_bytes"):
        assert type(found[name]) is int
    for name in ("textbook_memory", "memory", "compute_optimal", "parameters"):
        assert any(type(value) is int and value > 0 for _, value in leaves(found[name]))


def test_rates_of_devices_are_whole_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--devices", "--json"]) == 0
    for row in json.loads(capsys.readouterr().out):
        numbers = [value for name, value in row.items() if name.endswith(("second", "bytes"))]
        assert numbers and all(value is None or type(value) is int for value in numbers)


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
