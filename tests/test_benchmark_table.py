"""The README's figures are those of the results, and nobody typed them."""

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
        "targets": {"rival": 1.25, "absent": 2},
        "limit": None,
        "valid": True,
        "tools": {
            "groundup": {"median": 123.4},
            "rival": {"median": 61.7, "ratio": 2.0, "agrees": True},
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


def test_the_readmes_table_is_what_the_results_say(tool: types.ModuleType) -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    section = tool.render_section(tool.read_results())
    assert readme == tool.put_section(readme, section), "run tools/write_benchmark_table.py"
    assert "num_" not in section, "a name of the code instead of words"


def test_a_line_shows_ours_each_rival_the_ratio_and_the_target(tool: types.ModuleType) -> None:
    section = tool.render_section([result()])
    assert line_of(section) == (
        "| encode, cold | **123 MB/s** | rival 61.7 MB/s (2.00x) "
        "| 1.25x rival: met; 2x absent: not measured |"
    )
    assert "2026-01-02, 2 cores of A CPU, 16 GiB" in section
    assert "rival 1.0" in section


def test_a_missed_target_is_said(tool: types.ModuleType) -> None:
    section = tool.render_section([result(targets={"rival": 2.5}, limit=100.0)])
    assert "2.5x rival: missed; 100 MB/s at most: missed" in section


def test_a_rival_with_another_output_shows_no_figure(tool: types.ModuleType) -> None:
    tools = {
        "groundup": {"median": 123.4},
        "rival": {"median": 900.0, "ratio": 0.1, "agrees": False},
        "broken": {"error": "it fell over"},
    }
    line = line_of(tool.render_section([result(tools=tools, valid=False)]))
    assert "encode, cold (outputs differ)" in line
    assert "rival gives another result, broken fails" in line
    assert "900" not in line


def test_a_rival_that_got_less_text_says_so(tool: types.ModuleType) -> None:
    tools = {
        "groundup": {"median": 123.4},
        "rival": {"median": 1.0, "ratio": 99.0, "agrees": True, "note": "on the first 1 MB"},
    }
    assert "rival 1.00 MB/s (99.0x, on the first 1 MB)" in tool.render_section(
        [result(tools=tools)]
    )


def training_result() -> dict[str, Any]:
    changed = result(
        unit="tokens/s",
        targets={"the best rival": 1.5},
        least=4.5e6,
        tools={
            "groundup": {"median": 4.6e6, "mfu": 0.5134},
            "slow": {"median": 1.0e6, "mfu": 0.1, "ratio": 4.6, "agrees": True},
            "near": {"median": 2.5e6, "mfu": 0.25, "ratio": 1.84, "agrees": True},
            "wrong": {"median": 9.2e6, "mfu": 0.9, "ratio": 0.5, "agrees": False},
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


def test_a_training_line_shows_tokens_and_the_share_of_the_devices_best(
    tool: types.ModuleType,
) -> None:
    section = tool.render_section([training_result()])
    assert line_of(section) == (
        "| encode, cold | **4.60M tokens/s, 51.3% MFU** | slow 1.00M tokens/s, 10.0% MFU (4.60x), "
        "near 2.50M tokens/s, 25.0% MFU (1.84x), wrong gives another result "
        "| 1.5x the best rival: met; 4.50M tokens/s at least: met |"
    )
    assert "2026-01-02, A GPU, 128 GiB, CUDA 13.0, 2 cores of A CPU, 16 GiB, Linux" in section
    assert "; random ids; one round; rival 1.0." in section


def test_the_best_rival_is_the_one_that_came_nearest(tool: types.ModuleType) -> None:
    row = training_result()["rows"][0] | {"targets": {"the best rival": 2.0}}
    section = tool.render_section([{**training_result(), "rows": [row]}])
    assert "2x the best rival: missed" in section


def test_training_comes_after_the_tokenizer(tool: types.ModuleType, tmp_path: Path) -> None:
    for one in (training_result(), {**training_result(), "benchmark": "train_step_cpu"}, result()):
        (tmp_path / f"{one['benchmark']}.json").write_text(json.dumps(one))
    names = [one["benchmark"] for one in tool.read_results(tmp_path)]
    assert names == ["tokenizer_encoding", "train_step_cpu", "train_step_cuda"]


def test_rows_beside_the_headlines_stay_in_the_file(tool: types.ModuleType) -> None:
    assert "encode, cold" not in tool.render_section([result(headline=False)])


def test_a_rehearsal_is_not_put_into_the_readme(tool: types.ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({**result(), "quick": True}))
    with pytest.raises(SystemExit, match="--quick"):
        tool.read_results(tmp_path)


def test_only_what_is_between_the_markers_changes(tool: types.ModuleType) -> None:
    page = f"above\n{tool.BEGIN}\nold\n{tool.END}\nbelow\n"
    assert tool.put_section(page, "new\n") == f"above\n{tool.BEGIN}\nnew\n{tool.END}\nbelow\n"
