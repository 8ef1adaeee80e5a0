"""Every benchmark runs from end to end on a small text and writes a well-formed result; and the
numbers in the README and in docs/benchmarks.md are those of the results."""

import contextlib
import importlib
import json
import pickle
import platform
import runpy
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from groundup.cli.main import main

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"

Start = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the modules next to the scripts importable."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def run_here(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
    """Run a script in this process: importing torch would take longer than the work."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", command[1:])
        runpy.run_path(command[1], run_name="__main__")
    return subprocess.CompletedProcess(command, int(ended.value.code or 0), "", str(ended.value))


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Iterator[None]:
    """Run a benchmark's jobs in this process, and undo its global changes."""
    import encoding_work
    import measure

    monkeypatch.setattr(
        measure, "subprocess", types.SimpleNamespace(run=run_here, TimeoutExpired=TimeoutError)
    )
    monkeypatch.setattr(measure, "use_cores", lambda count: None)
    monkeypatch.setattr(encoding_work, "_SECONDS_OF_PASSES", 0.1)
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, "")
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(precision)


def run(start: Start, name: str, out: Path, *flags: str) -> dict[str, Any]:
    script = str(BENCHMARKS / f"{name.removesuffix('_cpu')}.py")
    command = [sys.executable, script, "--quick", "--out", str(out), *flags]
    done = start(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    file = out / f"{name}_{platform.machine()}.json"
    result: dict[str, Any] = json.loads(file.read_text())
    return result


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("name", "rivals", "only"),
    [
        ("tokenizer_encoding", ["tiktoken"], ["pieces", "batch", "decode", "special", "letter"]),
        ("tokenizer_training", ["tokenizers"], ["stories"]),
        ("train_step_cpu", ["torch", "gpt"], ["cpu-small"]),
        ("generation_cpu", ["torch, compiled static cache"], ["S1"]),
    ],
)
def test_benchmarks_write_well_formed_results(
    name: str, rivals: list[str], only: list[str], tmp_path: Path
) -> None:
    flags = ["--tools", *rivals, "--only", *only]
    if name.endswith("_cpu"):
        flags += ["--device", "cpu"]
    else:
        for rival in rivals:
            pytest.importorskip(rival)
    result = run(run_here, name, tmp_path, *flags)
    assert result["benchmark"] == name
    assert result["quick"] and result["rounds"] == 1
    assert result["hardware"]["cores"] >= 1
    assert {"python", "groundup"} <= set(result["versions"])
    # Tools that are left out are listed.
    assert name != "tokenizer_training" or result["skipped"]["gigatoken"] == "not asked for"
    names = [row["name"] for row in result["rows"]]
    assert names and len(set(names)) == len(names)
    assert all(any(part in row for part in only) for row in names)
    for row in result["rows"]:
        assert row["valid"], row
        for tool, cell in row["tools"].items():
            assert "error" not in cell, (row["name"], tool, cell)
            assert cell["low"] <= cell["median"] <= cell["high"]
        assert row["tools"]["groundup"]["median"] >= 0
        if name.endswith("_cpu") and row["unit"] == "tokens/s":
            # Results are compared before they are timed.
            assert row["tools"][rivals[0]]["agrees"]
            assert all(cell["median"] > 0 for cell in row["tools"].values())


@pytest.mark.usefixtures("one_thread")
def test_serving_benchmark_answers_all_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import serving

    def serve(command: list[str], **_: Any) -> Any:
        monkeypatch.setattr(sys, "argv", command[1:])
        return subprocess.CompletedProcess(command, serving.main(), "", "")

    flags = ("--device", "cpu", "--clients", "2", "--seconds", "1")
    result = run(serve, "serving_cpu", tmp_path, *flags)
    assert result["benchmark"] == "serving_cpu" and result["quick"]
    assert {"python", "groundup", "torch"} <= set(result["versions"])
    (row,) = result["rows"]
    assert row["name"] == "tiny.2_clients" and row["clean_end"]
    assert row["num_answers"] >= 2
    assert row["num_errors"] == row["num_lost"] == 0
    assert row["tokens_per_second"] > 0 and row["requests_per_second"] > 0
    for name in ("first_token_seconds", "token_seconds", "whole_seconds"):
        assert 0 < row[name]["p50"] <= row[name]["p90"] <= row[name]["p99"]


@pytest.mark.slow
def test_failing_tools_are_rows_with_their_error(tmp_path: Path) -> None:
    from measure import Benchmark, Measure, Task, Verdict, run_task

    # No such script: every process ends with an error.
    benchmark = Benchmark("b", "?", lambda _: [], dict, lambda *_: Verdict(True, ""))
    task = Task("task", "a task", {}, ("rival",), (Measure("time", ""),))
    (row,) = run_task(benchmark, task, ["rival"], str(tmp_path / "none.py"), tmp_path, 1)
    assert not row["valid"]
    assert all("none.py" in cell["error"] for cell in row["tools"].values())


def test_tokens_per_second_mfu_and_bandwidth() -> None:
    from measure import OURS, Measure, Task, make_row

    # Bandwidth is computed for each batch size.
    extra: Any = {"flops_per_token": 1e9, "peak_flops_per_second": 1e12}
    extra |= {"bytes_per_token": {"a": 4e9, "b": 1e9}, "peak_bytes_per_second": 4e12}
    ours = {"num_tokens": 1_000, "extra": extra, "seconds": {"a": 2.0, "b": 1.0}}
    theirs = {"num_tokens": 1_000, "extra": {"flops_per_token": 1e9}, "seconds": {"a": 4, "b": 4}}
    measures = tuple(Measure(name, name, "tokens/s") for name in ("a", "b"))
    task = Task("task", "a task", {}, ("rival",), measures)
    results = {OURS: [ours], "rival": [theirs]}
    tools = [make_row(task, measure, results, {}, {})["tools"] for measure in measures]
    assert [row[OURS]["median"] for row in tools] == [500, 1_000]
    assert [row[OURS]["mfu"] for row in tools] == [0.5, 1.0]
    assert [row[OURS]["bandwidth"] for row in tools] == [0.5, 0.25]
    assert not {"mfu", "bandwidth"} & set(tools[0]["rival"])


REPOSITORY = Path(__file__).resolve().parent.parent.parent
SMALL = "vocab_size=300 context_length=32 d_model=32 num_heads=2 num_layers=2 d_ff=64".split()


def apply(run: Any, arguments: Any) -> Any:
    """The work of a separate process, which would take ten times as long to start."""
    return pickle.loads(pickle.dumps(run(*pickle.loads(pickle.dumps(arguments)))))


_SCRIPT = """
import torch
from kernels import get_kernel
from prepare import MAX_SEQ_LEN, TIME_BUDGET, Tokenizer, evaluate_bpb, make_dataloader

flash = get_kernel("any/flash-attention").flash_attn_interface
torch.manual_seed(42)
q, k, v = torch.randn(3, 1, MAX_SEQ_LEN, 1, 4).unbind()
for window in (-1, 256):
    offsets = torch.arange(MAX_SEQ_LEN)[:, None] - torch.arange(MAX_SEQ_LEN)
    seen = (offsets >= 0) & (offsets <= (window if window > 0 else MAX_SEQ_LEN))
    scores = (q[0, :, 0] @ k[0, :, 0].T / 2).masked_fill(~seen, -torch.inf)
    found = flash.flash_attn_func(q, k, v, causal=True, window_size=(window, 0))
    torch.testing.assert_close(found[0, :, 0], scores.softmax(-1) @ v[0, :, 0])

class Bigrams(torch.nn.Embedding):
    def forward(self, ids, targets, reduction="mean"):
        logits = super().forward(ids).flatten(0, 1)
        return torch.nn.functional.cross_entropy(
            logits, targets.flatten(), ignore_index=-1, reduction=reduction
        )

tokenizer = Tokenizer.from_directory()
model = Bigrams(tokenizer.get_vocab_size(), tokenizer.get_vocab_size())
optimizer = torch.optim.Adam(model.parameters(), 0.1)
batches = make_dataloader(tokenizer, 2, MAX_SEQ_LEN, "train")
for _ in range(30):
    ids, targets, epoch = next(batches)
    assert (ids[:, 0] == tokenizer.get_bos_token_id()).all()
    assert (ids[:, 1:] == targets[:, :-1]).all()
    model(ids, targets).backward()
    optimizer.step()
    optimizer.zero_grad()
assert epoch >= 1 and TIME_BUDGET == 0.5
evaluate_bpb(model, tokenizer, 2)
"""


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.usefixtures("one_thread")
def test_all_entries_train_on_the_same_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (
        "data sample --megabytes 0.2 --out text.txt",
        "tokenizer train text.txt --vocab-size 300 --out tokenizer.json",
        "data prepare text.txt --tokenizer tokenizer.json --out shards --validation-fraction 0.1",
    ):
        assert main(command.split()) == 0
    config = str(REPOSITORY / "configs" / "train" / "speedrun.yaml")
    (tmp_path / "bigrams.py").write_text(_SCRIPT)
    words = ["race.py", config, "nanogpt@1e-2", "bigrams.py", "--seconds", "0.5", "--seeds", "0"]
    words += ["--out", "race.json", "--set", "device=cpu", "batch_size=4"]
    words += [*(f"model.{one}" for one in SMALL), "data.shards=shards"]
    words += ["data.tokenizer=tokenizer.json", "num_threads=1"]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    import race

    for name in ("prepare", "kernels"):
        # Remove the race's modules after the test: transformers looks for `kernels`.
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.delitem(sys.modules, name)
    pool = contextlib.nullcontext(SimpleNamespace(apply=apply))
    here = SimpleNamespace(get_context=lambda kind: SimpleNamespace(Pool=lambda size: pool))
    monkeypatch.setattr(race, "multiprocessing", here)
    precision = torch.get_float32_matmul_precision()
    assert race.main() == 0
    torch.set_float32_matmul_precision(precision)
    shown = capsys.readouterr().out
    # A single seed cannot show a difference.
    assert shown.count(", p 1.000") == 2
    results = json.loads((tmp_path / "race.json").read_text())["results"]
    assert [one["entry"] for one in results] == [config, "nanogpt@1e-2", "bigrams.py"]
    for result in results:
        # A uniform distribution has a loss of ln 300 = 5.7.
        assert result["tokens"] > 0 and result["validation_loss"] < 5.5
    # All have the same bytes per token.
    ratios = [one["bits_per_byte"] / one["validation_loss"] for one in results]
    assert ratios == pytest.approx([ratios[0]] * 3)
    assert race._p_value([1.0, 1.1, 1.2], [2.0, 2.1, 2.2]) == 0.1


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    monkeypatch.syspath_prepend(str(REPOSITORY / "tools"))
    return importlib.import_module("write_benchmark_table")


def test_the_pages_match_the_results(tool: types.ModuleType) -> None:
    results = tool.read_results()
    page = tool.render_page(results)
    readme = tool.README.read_text(encoding="utf-8")
    assert tool.PAGE.read_text(encoding="utf-8") == page, "run tools/write_benchmark_table.py"
    highlights = tool.put_section(readme, tool.render_highlights(results))
    assert readme == highlights, "run tools/write_benchmark_table.py"
    assert "num_" not in page, "a name of the code instead of words"


@pytest.mark.parametrize(("unit", "ratio"), [("MB/s", "2.00x"), ("s", "0.50x")])
def test_ratios_match_the_medians_shown(tool: types.ModuleType, unit: str, ratio: str) -> None:
    tools = {"groundup": {"median": 123.4}, "rival": {"median": 61.7, "agrees": True}}
    row = {"name": "cold", "title": "cold", "unit": unit, "valid": True, "tools": tools}
    result = next(one for one in tool.read_results() if one["benchmark"] == "tokenizer_encoding")
    for is_shown in (True, False):
        page = tool.render_page([{**result, "rows": [{**row, "headline": is_shown}]}])
        assert (f"| cold | **123 {unit}** | rival 61.7 {unit} ({ratio}) |" in page) == is_shown
