"""`groundup plan`: the figures of a preset, of a settings file, of flags, and of this machine."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from groundup.cli.main import main


def figures(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["plan", *words, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    result: dict[str, Any] = json.loads(captured.out)
    return result


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["plan", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    return captured.err.removeprefix("error: ")


@pytest.mark.parametrize("words", [[], ["--model.d-ff", "6400"]], ids=str)
def test_gpt2_xl_has_its_known_figures(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    found = figures(capsys, "--preset", "gpt2-xl", *words)
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
    assert set(found["shares"]["by_size"]) == {
        "gpt2-small",
        "gpt2-medium",
        "gpt2-large",
        "gpt2-xl",
    }
    assert found["duration"]["num_steps"] == 400_000
    assert found["duration"]["batch_size"] == 1_024
    assert found["duration"]["seconds"] == 568_819_274
    assert found["duration"]["days"] == pytest.approx(6_583.56)
    assert found["textbook_memory"]["bytes_per_sequence"] == 18_034_335_744
    assert found["textbook_memory"]["fixed_bytes"] == 34_032_921_600
    assert found["textbook_memory"]["largest_batch"] == 2


def test_flags_change_the_preset(capsys: pytest.CaptureFixture[str]) -> None:
    found = figures(capsys, "--preset", "gpt2-xl", "--model.d-ff", "4288")
    assert found["model"]["d_ff"] == 4_288 and found["model"]["d_model"] == 1_600
    assert found["parameters"]["feed_forward"] == 48 * 3 * 1_600 * 4_288


def test_a_settings_file_says_what_is_planned(
    capsys: pytest.CaptureFixture[str], small_config: Path
) -> None:
    found = figures(capsys, "--config", str(small_config), "--device", "h200")
    assert found["duration"]["num_steps"] == 12 and found["duration"]["batch_size"] == 2
    assert found["model"]["vocab_size"] == 300
    assert (found["duration"]["device"], found["duration"]["precision"]) == ("H200", "bfloat16")


def test_tokens_stand_for_steps(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--preset", "tinystories", "--batch-size", "10", "--tokens", "1000000"]
    found = figures(capsys, *words)
    assert found["duration"]["num_steps"] == 391
    assert found["duration"]["num_tokens"] == 391 * 2_560


@pytest.mark.parametrize(
    "words",
    [["--tokens", "1e9"], ["--tokens=1.0e+9"], ["--tokens", "1_000_000_000"]],
    ids=" ".join,
)
def test_whole_numbers_may_have_an_exponent(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    found = figures(capsys, *words, "--mfu", "5e-1", "--batch-size", "1")
    assert found["duration"]["num_steps"] == 3_906_250
    assert found["duration"]["mfu"] == 0.5


@pytest.mark.parametrize("number", ["1.5e0", "abc", "1e3x", "1e999"])
def test_what_is_no_whole_number_is_said(capsys: pytest.CaptureFixture[str], number: str) -> None:
    for flag in ("--tokens", "--batch-size"):
        assert fails(capsys, flag, number) == f"{flag}: {number!r} is no whole number\n"


def test_minutes_stand_for_steps(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--preset", "tinystories", "--batch-size", "128", "--device", "H200"]
    words += ["--precision", "bfloat16", "--mfu", "0.4", "--minutes", "10"]
    duration = figures(capsys, *words, "--corpus-tokens", "1000000")["duration"]
    # 600 s at 0.4 · 989.4 TFLOP/s, and 3 · 128 · 9,533,652,992 operations a step.
    assert duration["num_steps"] == int(600 * 0.4 * 989.4e12 / 3_660_922_748_928)
    assert duration["num_tokens"] == duration["num_steps"] * 128 * 256
    assert duration["num_epochs"] == pytest.approx(duration["num_tokens"] / 1e6, abs=1e-3)
    assert duration["seconds"] == 600


def test_epochs_are_those_of_the_shards_that_the_settings_file_names(
    capsys: pytest.CaptureFixture[str], small_config: Path
) -> None:
    found = figures(capsys, "--config", str(small_config))
    assert found["duration"]["num_epochs"] > 0


def test_the_table_of_devices_has_rates_prices_and_sources(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "--devices"]) == 0
    page = capsys.readouterr().out
    for text in ("A100 80GB", "M4 MAX", "CPU of", "989.4", "NVIDIA H200 data sheet", "2026-"):
        assert text in page
    assert main(["plan", "--devices", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["H200"]["float32_flops_per_second"] == 66.9e12
    assert rows["H200"]["price"]["dollars_per_hour"] == 4.0


def test_what_does_not_fit_and_what_has_no_price_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "--preset", "gpt2-xl", "--device", "M1"]) == 0
    page = capsys.readouterr().out
    assert "does not fit: one sequence at a time takes" in page
    assert "none in the table: give --price-per-hour" in page


def test_a_plan_needs_no_torch(repository: Path) -> None:
    script = """
import sys
from groundup.cli.main import main
assert main(["plan", "--preset", "gpt2-xl", "--minutes", "10000"]) == 0
assert "torch" not in sys.modules
"""
    command = [sys.executable, "-c", script]
    environment = {"PYTHONPATH": str(repository / "src")}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)


def test_another_device_is_planned_for_by_its_peak_and_memory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--device", "abacus", "--peak-tflops", "0.5", "--memory-gb", "16"]
    found = figures(capsys, *words, "--price-per-hour", "0.1", "--mfu", "0.25")
    assert found["duration"]["device"] == "abacus"
    assert found["duration"]["peak_flops_per_second"] == 500_000_000_000
    assert found["memory"]["memory_bytes"] == 16_000_000_000
    hours = found["duration"]["seconds"] / 3600
    assert found["duration"]["dollars"] == pytest.approx(0.1 * hours, rel=1e-6)


def test_a_plot_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "shares.svg"
    figures(capsys, "--preset", "gpt2-xl", "--plot", str(file))
    assert ElementTree.parse(file).getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    "words", [["--device", "H200"], ["--mfu", "0.4"], ["--memory-gb=8"]], ids=" ".join
)
def test_a_probe_takes_no_guesses(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    complaint = fails(capsys, "--preset", "quickstart", "--probe=true", *words)
    assert complaint.startswith("--probe measures this machine: leave " + words[0].split("=")[0])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--preset", "gpt2-xxl"], "there is no preset 'gpt2-xxl': did you mean gpt2-xl?"),
        (["--preset", "gpt2-xl", "--config", "a.yaml"], "both say what to plan: give one"),
        (["--config", "nowhere.yaml"], "nowhere.yaml does not exist"),
        (["--model.d-model", "510"], "d_model 510 cannot be cut into num_heads 16 equal parts"),
        (["--model.d-model", "48"], "gives heads of odd size 3: choose an even one"),
        (
            ["--device", "H20"],
            "there is no device 'H20' in the planner's table: did you",
        ),
        (["--mfu", "50"], "mfu is 50, but it is a share"),
        (["--batch-size", "0"], "--batch-size is 0, but must be at least 1"),
        (["--batch-size", "8", "--micro-batch-size", "3"], "choose a divisor of the batch size"),
        (["--memory-gb", "-1"], "--memory-gb is -1, but must be above 0"),
        (["--memory-gb", "inf"], "--memory-gb is inf: give a finite number"),
        (["--peak-tflops", "nan"], "--peak-tflops is nan: give a finite number"),
        (["--minutes", "0"], "--minutes is 0, but must be above 0"),
        (["--minutes", "1e400"], "--minutes is inf: give a finite number"),
        (["--num-steps", "1" + 400 * "0"], "beyond 64 bits: give a smaller number"),
        (["--model.vocab-size", "1" + 400 * "0"], "less than or equal to 100000000"),
        (["--minutes", "1", "--tokens", "9"], "--tokens and --minutes both say how long the run"),
        (["--preset", "gpt2-xl", "--minutes", "1"], "one step takes 1.42e+03 s on A100 80GB"),
        (["--plot", "shares.png"], "--plot writes SVG, but 'shares.png' does not end in .svg"),
        (["--device", "V100", "--precision", "bfloat16"], "V100 has no bfloat16 of its own"),
        (["--preest", "gpt2-xl"], "did you mean --preset?"),
    ],
)
def test_a_mistake_is_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    assert complaint in fails(capsys, *words)
