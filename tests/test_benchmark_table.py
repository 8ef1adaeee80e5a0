"""The numbers in the README and docs/benchmarks.md match the results."""

import importlib.util
import types
from pathlib import Path

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
