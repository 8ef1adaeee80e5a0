"""The numbers in the README and in docs/benchmarks.md are those of the results."""

import importlib.util
import json
import types
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def tool() -> types.ModuleType:
    path = REPOSITORY / "tools" / "write_benchmark_table.py"
    spec = importlib.util.spec_from_file_location("write_benchmark_table", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def result(**changes: Any) -> dict[str, Any]:
    row = {
        "name": "array.cold",
        "title": "encode, cold",
        "unit": "MB/s",
        "headline": True,
        "valid": True,
        "tools": {
            "groundup": {"median": 123.4},
            "rival": {"median": 61.7, "agrees": True},
        },
    }
    return {
        "benchmark": "tokenizer_encoding",
        "question": "How fast?",
        "date": "2026-01-02",
        "quick": False,
        "rounds": 3,
        "hardware": {"cpu": "A CPU", "cores": 2, "memory_bytes": 2**34, "system": "Linux"},
        "text": "somewhere",
        "versions": {"rival": "1.0"},
        "rows": [{**row, **changes}],
    }


def line_of(section: str) -> str:
    (line,) = (line for line in section.splitlines() if line.startswith("| encode"))
    return line


def test_the_pages_are_what_the_results_say(tool: types.ModuleType) -> None:
    results = tool.read_results()
    page = tool.render_page(results)
    readme = tool.README.read_text(encoding="utf-8")
    assert tool.PAGE.read_text(encoding="utf-8") == page, "run tools/write_benchmark_table.py"
    highlights = tool.put_section(readme, tool.render_highlights(results))
    assert readme == highlights, "run tools/write_benchmark_table.py"
    assert "num_" not in page, "a name of the code instead of words"


@pytest.mark.parametrize("unit", ["MB/s", "s"])
def test_a_ratio_is_the_quotient_of_the_two_medians_shown(
    tool: types.ModuleType, unit: str
) -> None:
    page = tool.render_page([result(unit=unit)])
    ratio = "2.00x" if unit == "MB/s" else "0.50x"
    assert line_of(page) == f"| encode, cold | **123 {unit}** | rival 61.7 {unit} ({ratio}) |"
    assert "2026-01-02, 2 cores of A CPU, 16 GiB" in page
    assert "rival 1.0" in page


def test_a_rival_with_another_output_shows_no_number_and_one_with_less_text_says_so(
    tool: types.ModuleType,
) -> None:
    tools = {
        "groundup": {"median": 99.0},
        "rival": {"median": 900.0, "agrees": False},
        "broken": {"error": "it fell over"},
        "slow": {"median": 1.0, "agrees": True, "note": "on the first 1 MB"},
    }
    line = line_of(tool.render_page([result(tools=tools, valid=False)]))
    assert "encode, cold (outputs differ)" in line and "900" not in line
    assert "rival gives another result, broken fails" in line
    assert "slow 1.00 MB/s (99.0x, on the first 1 MB)" in line


def training_result() -> dict[str, Any]:
    changed = result(
        unit="tokens/s",
        tools={
            "groundup": {"median": 4.6e6, "mfu": 0.5134},
            "slow": {"median": 1.0e6, "mfu": 0.1, "agrees": True},
            "near": {"median": 2.5e6, "mfu": 0.25, "agrees": True},
            "wrong": {"median": 9.2e6, "mfu": 0.9, "agrees": False},
        },
    )
    accelerator = {
        "accelerator": "A GPU",
        "accelerator_memory_bytes": 2**37,
        "cuda": "13.0",
    }
    return {
        **changed,
        "benchmark": "train_step_cuda",
        "rounds": 1,
        "hardware": changed["hardware"] | accelerator,
        "text": None,
        "conditions": "random ids",
    }


def test_a_training_line_shows_tokens_and_mfu(tool: types.ModuleType) -> None:
    page = tool.render_page([training_result()])
    assert line_of(page) == (
        "| encode, cold | **4.60M tokens/s, 51.3% MFU** | slow 1.00M tokens/s, 10.0% MFU (4.60x), "
        "near 2.50M tokens/s, 25.0% MFU (1.84x), wrong gives another result |"
    )
    assert "2026-01-02, A GPU, 128 GiB, CUDA 13.0, 2 cores of A CPU, 16 GiB, Linux" in page
    assert "; random ids; one round; rival 1.0." in page


def test_a_line_of_generation_shows_the_fraction_of_bandwidth(tool: types.ModuleType) -> None:
    tools = {
        "groundup": {"median": 9_000.0, "bandwidth": 0.0712},
        "rival": {"median": 3_000.0, "bandwidth": 0.0237, "agrees": True},
    }
    line = line_of(tool.render_page([result(unit="tokens/s", tools=tools)]))
    assert line == (
        "| encode, cold | **9,000 tokens/s, 7.1% of bandwidth** | rival 3,000 tokens/s, 2.4% of "
        "bandwidth (3.00x) |"
    )


def test_the_readme_holds_ours_against_the_best_rival_with_the_right_output(
    tool: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "HIGHLIGHTS", [("train", "array.cold", "Train")])
    table = tool.render_highlights([{**training_result(), "file": "train"}])
    assert (
        "| Train | **4.60M tokens/s, 51.3% MFU** | 2.50M tokens/s, 25.0% MFU, near | 1.84x |"
        in table
    )


def test_results_are_in_order_and_rehearsals_refused(
    tool: types.ModuleType, tmp_path: Path
) -> None:
    for one in (training_result(), {**training_result(), "benchmark": "train_step_cpu"}, result()):
        (tmp_path / f"{one['benchmark']}.json").write_text(json.dumps(one))
    names = [one["benchmark"] for one in tool.read_results(tmp_path)]
    assert names == ["tokenizer_encoding", "train_step_cpu", "train_step_cuda"]
    (tmp_path / "a.json").write_text(json.dumps({**result(), "quick": True}))
    with pytest.raises(SystemExit, match="--quick"):
        tool.read_results(tmp_path)


def test_rows_beside_the_headlines_stay_in_the_file(tool: types.ModuleType) -> None:
    assert "encode, cold" not in tool.render_page([result(headline=False)])
