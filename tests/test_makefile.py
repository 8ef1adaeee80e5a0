"""The Makefile's lists leave nothing out."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")


def test_make_bench_runs_every_benchmark_that_has_results() -> None:
    scripts = set(re.findall(r"benchmarks/(\w+)\.py", MAKEFILE))
    results = [path.name for path in (REPOSITORY / "benchmarks" / "results").glob("*.json")]
    assert results
    for name in results:
        assert any(name.startswith(script) for script in scripts), name


def test_make_sanitize_tests_every_package_that_calls_the_native_core() -> None:
    package = REPOSITORY / "src" / "groundup"
    callers = {
        path.relative_to(package).parts[0]
        for path in package.rglob("*/*.py")
        if re.search(r"^ *from groundup(\._native import| import _native)", path.read_text(), re.M)
    }
    found = re.search(r"^SANITIZE_TESTS \?= (.*)", MAKEFILE, re.M)
    assert found is not None
    assert callers == {folder.removeprefix("tests/") for folder in found[1].split()}
