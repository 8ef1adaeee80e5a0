"""The numbers in the README and in docs/benchmarks.md are those of the results."""

import importlib.util
import types
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture
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
    assert "2026-01-02, 2 cores of A CPU, 16 GiB" in page and "rival 1.0" in page
    assert "encode, cold" not in tool.render_page([result(headline=False)])
