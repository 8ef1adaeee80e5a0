"""No package is longer than its budget in pyproject.toml.

Lines are physical lines, including blank lines and docstrings. A change that shortens a package
lowers its budget; one that needs more takes the lines from another package.
"""

import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "src" / "groundup"
BUDGETS: dict[str, int] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["tool"][
    "groundup"
]["lines"]


def count_lines(files: Iterable[Path]) -> int:
    return sum(len(file.read_bytes().splitlines()) for file in files if file.is_file())


def measure() -> dict[str, int]:
    """Count the lines of each budget."""
    lines = {
        folder.name: count_lines(folder.rglob("*.py"))
        for folder in sorted(PACKAGE.iterdir())
        if (folder / "__init__.py").exists()
    }
    lines["top-level"] = count_lines(PACKAGE.glob("*.py"))
    lines["package"] = sum(lines.values())
    native = (REPOSITORY / "native").iterdir()
    lines["native"] = count_lines(file for file in native if file.name != "unicode_tables.inc")
    lines["web"] = count_lines(PACKAGE.rglob("static/*"))
    lines["tests"] = count_lines((REPOSITORY / "tests").rglob("*.py"))
    scripts = (REPOSITORY / name for name in ("benchmarks", "tools"))
    lines["scripts"] = sum(count_lines(folder.rglob("*.py")) for folder in scripts)
    return lines


def test_every_package_has_a_budget() -> None:
    assert set(measure()) == set(BUDGETS)


@pytest.mark.parametrize("part", BUDGETS)
def test_packages_stay_within_their_budgets(part: str) -> None:
    assert measure()[part] <= BUDGETS[part]
