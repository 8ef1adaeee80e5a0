"""A GB is 10^9 bytes wherever one is shown: in commands, reports and pages."""

from pathlib import Path

import groundup
from groundup.planner.quantities import show_bytes

UNITS = {"1e12": "TB", "1e9": "GB", "1e6": "MB", "1e3": "kB"}


def test_a_gb_is_a_billion_bytes_and_nothing_else_makes_units_of_bytes() -> None:
    assert [show_bytes(float(size)) for size in UNITS] == [f"1.0 {unit}" for unit in UNITS.values()]
    units = ", ".join(f'[{size}, " {unit}"]' for size, unit in UNITS.items())
    package = Path(groundup.__file__).parent
    assert f"[{units}]" in (package / "serving/static/run_format.js").read_text("utf-8")
