"""Every benchmark runs from end to end on a small text and writes a well-formed result."""

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"


def run(name: str, out: Path, *flags: str, result_name: str | None = None) -> dict[str, Any]:
    script = str(BENCHMARKS / f"{name}.py")
    command = [sys.executable, script, "--quick", "--out", str(out), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    file = out / f"{result_name or name}_{platform.machine()}.json"
    result: dict[str, Any] = json.loads(file.read_text())
    return result


@pytest.mark.parametrize(
    ("name", "rivals"),
    [
        ("tokenizer_encoding", ["tiktoken"]),
        ("tokenizer_training", ["tokenizers"]),
        ("data_prepare", []),
    ],
)
def test_a_benchmark_gives_a_well_formed_result(
    name: str, rivals: list[str], tmp_path: Path
) -> None:
    for rival in rivals:
        pytest.importorskip(rival)
    result = run(name, tmp_path, "--tools", *rivals) if rivals else run(name, tmp_path)
    assert result["benchmark"] == name
    assert result["quick"] and result["rounds"] == 1
    assert result["hardware"]["cores"] >= 1
    assert {"python", "groundup", *rivals} <= set(result["versions"])
    names = [row["name"] for row in result["rows"]]
    assert names and len(set(names)) == len(names)
    for row in result["rows"]:
        assert row["valid"], row
        for tool, cell in row["tools"].items():
            assert "error" not in cell, (row["name"], tool, cell)
            assert cell["low"] <= cell["median"] <= cell["high"]
        assert row["tools"]["groundup"]["median"] >= 0
        assert "ratio" not in row["tools"]["groundup"]


def test_a_training_step_is_measured_beside_a_peer_that_agrees(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    flags = ("--device", "cpu", "--only", "cpu-small", "--tools", "huggingface")
    result = run("train_step", tmp_path, *flags, result_name="train_step_cpu")
    assert result["benchmark"] == "train_step_cpu"
    assert result["text"] is None and "random ids" in result["conditions"]
    assert {"python", "groundup", "transformers"} <= set(result["versions"])
    (speed,) = (row for row in result["rows"] if row["unit"] == "tokens/s")
    assert speed["valid"] and set(speed["tools"]) == {"groundup", "huggingface"}
    assert speed["tools"]["huggingface"]["agrees"]
    for cell in speed["tools"].values():
        assert cell["median"] > 0 and cell["extra"]["flops_per_token"] > 0


def test_writing_is_measured_beside_a_peer_that_writes_the_same(tmp_path: Path) -> None:
    flags = ("--device", "cpu", "--only", "S1", "--tools", "torch, no cache")
    result = run("generation", tmp_path, *flags, result_name="generation_cpu")
    assert result["benchmark"] == "generation_cpu" and result["quick"]
    assert "top-p" in result["conditions"]
    assert [row["name"] for row in result["rows"]] == ["S1.batch_1", "S1.batch_64"]
    for row in result["rows"]:
        assert row["valid"] and row["unit"] == "tokens/s"
        assert set(row["tools"]) == {"groundup", "torch, no cache"}
        assert row["tools"]["torch, no cache"]["agrees"]
        assert all(cell["median"] > 0 for cell in row["tools"].values())


def test_a_server_is_measured_and_loses_no_client(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    flags = ("--device", "cpu", "--clients", "2", "--seconds", "1")
    result = run("serving", tmp_path, *flags, result_name="serving_cpu")
    assert result["benchmark"] == "serving_cpu" and result["quick"]
    assert {"python", "groundup", "torch"} <= set(result["versions"])
    (row,) = result["rows"]
    assert row["name"] == "tiny.2_clients" and row["clean_end"]
    assert row["num_answers"] == row["num_compared"] >= 2
    assert row["num_errors"] == row["num_lost"] == row["num_different"] == 0
    assert row["tokens_per_second"] > 0 and row["requests_per_second"] > 0
    for name in ("first_token_seconds", "token_seconds", "whole_seconds"):
        assert 0 < row[name]["p50"] <= row[name]["p90"] <= row[name]["p99"]


def test_a_tool_that_fails_is_a_row_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from measure import Benchmark, _Runner
    from rows import Measure, Task, Verdict

    # No such script: every process ends with an error.
    benchmark = Benchmark("b", "?", lambda _: [], dict, lambda *_: Verdict(True, ""))
    task = Task("task", "a task", {}, ("rival",), (Measure("time", ""),))
    runner = _Runner(benchmark, str(tmp_path / "none.py"), tmp_path, 1, 0, 60)
    (row,) = runner.run(task, ["rival"])
    assert not row["valid"]
    assert all("none.py" in cell["error"] for cell in row["tools"].values())


def test_tokens_a_second_and_the_share_of_the_devices_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from rows import OURS, Measure, Task, make_row

    extra = {"flops_per_token": 1e9, "peak_flops_per_second": 1e12}
    figures = {"cpu_seconds": {}, "num_tokens": 1_000, "extra": extra}
    ours = {**figures, "seconds": {"speed": 2.0}}
    theirs = {**figures, "seconds": {"speed": 4.0}, "extra": {"flops_per_token": 1e9}}
    measure = Measure("speed", "", "tokens/s")
    task = Task("task", "a task", {}, ("rival",), (measure,))
    pairs = {"rival": [(ours, theirs)]}
    row = make_row(task, measure, {OURS: [ours], "rival": [theirs]}, pairs, {}, {})
    assert row["tools"][OURS]["median"] == 500
    assert row["tools"][OURS]["mfu"] == 0.5
    assert row["tools"]["rival"]["ratio"] == 2
    assert "mfu" not in row["tools"]["rival"]


def test_a_tool_that_is_not_installed_is_said(tmp_path: Path) -> None:
    result = run("tokenizer_training", tmp_path, "--tools", "tokenizers", "--only", "stories")
    assert result["skipped"]["gigatoken"] == "not asked for"
    assert {row["name"].split(".")[0] for row in result["rows"]} == {"stories_10k"}
    assert all(set(row["tools"]) <= {"groundup", "tokenizers"} for row in result["rows"])


def test_a_tool_is_asked_for_by_its_name_or_by_the_part_before_the_comma(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from measure import _is_wanted

    both = ["torch", "torch, compiled"]
    assert [_is_wanted(tool, both, ["torch"]) for tool in both] == [True, False]
    assert [_is_wanted(tool, both, ["torch,compiled"]) for tool in both] == [False, True]
    assert _is_wanted("torch, compiled", ["torch, compiled"], ["torch"])


def test_ours_runs_right_beside_every_rival(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from measure import _groups
    from rows import OURS

    rivals = ["a", "b", "c", "d", "e"]
    for number in range(2):
        groups = list(_groups(rivals, number))
        assert sorted(tool for group in groups for tool in group if tool != OURS) == rivals
        for group in groups:
            ours = group.index(OURS)
            assert all(abs(place - ours) <= 1 for place in range(len(group)))
    assert list(_groups([], 0)) == [[OURS]]


def test_ratios_compare_neighbours_and_not_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from rows import OURS, Measure, Task, make_row

    def outcome(seconds: float) -> dict[str, Any]:
        timing = {"time": seconds}
        return {"seconds": timing, "cpu_seconds": timing, "num_bytes": 10**6, "peak_bytes": 0}

    # The machine slows down: each pair says twice as fast, medians over all rounds would not.
    ours = [outcome(1), outcome(10), outcome(100)]
    theirs = [outcome(2), outcome(20), outcome(200)]
    for unit in ("s", "MB/s"):
        measure = Measure("time", "", unit)
        task = Task("task", "a task", {}, ("rival",), (measure,))
        pairs = {"rival": list(zip(ours, theirs, strict=True))}
        row = make_row(task, measure, {OURS: ours, "rival": theirs}, pairs, {}, {})
        assert row["tools"]["rival"]["ratios"] == [2, 2, 2]
        assert row["tools"]["rival"]["ratio"] == row["tools"]["rival"]["cpu_ratio"] == 2
