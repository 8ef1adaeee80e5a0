"""docs/reading.md leads from bytes to a story: its code exists, is short, and its blocks run."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = (REPOSITORY / "docs" / "reading.md").read_text(encoding="utf-8")
MOST_LINES = 1_500


def stops() -> list[tuple[Path, list[str]]]:
    """The files that the page names, each with the functions and classes to read in it, or none
    for the whole file."""
    items = re.findall(r"^- `([\w/]+\.py)`(?:: ((?:`\w+`\s*)+))?", PAGE, re.MULTILINE)
    package = REPOSITORY / "src" / "groundup"
    return [(package / file, re.findall(r"`(\w+)`", names)) for file, names in items]


def num_lines(file: Path, names: list[str]) -> int:
    source = file.read_text(encoding="utf-8")
    if not names:
        return len(source.splitlines())
    parts = {
        node.name: (node.end_lineno or 0) - node.lineno + 1
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    return sum(parts[name] for name in names)


def test_an_evening_is_enough() -> None:
    assert len(stops()) >= 15
    total = sum(num_lines(file, names) for file, names in stops())
    assert 500 < total <= MOST_LINES


def test_every_stop_has_lines_to_run() -> None:
    sections = PAGE.split("\n## ")[1:]
    assert all(section.count("```python\n") == 1 for section in sections)


@pytest.mark.usefixtures("steady")
def test_the_lines_run_and_the_loss_falls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    before = None
    small = PAGE.replace('"--megabytes", "1"', '"--megabytes", "0.3"')
    small = small.replace("get_batch(data, 16, 64,", "get_batch(data, 8, 32,")
    for block in re.findall(r"^```python\n(.*?)^```$", small, re.MULTILINE | re.DOTALL):
        exec(compile(block, "reading.md", "exec"), names)
        if "cross_entropy" in names and before is None:
            before = names["cross_entropy"](names["model"](names["ids"][:-1]), names["ids"][1:])
    assert before is not None and names["loss"] < before - 2
    assert names["tokenizer"].decode(names["generated"]).startswith("Once upon a time")
