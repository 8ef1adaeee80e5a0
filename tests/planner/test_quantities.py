"""A GB is 10^9 bytes wherever one is shown: in commands, reports and pages."""

import re
from pathlib import Path

import groundup
from groundup.planner.quantities import show_bytes

PACKAGE = Path(groundup.__file__).parent
UNITS = {"1e12": "TB", "1e9": "GB", "1e6": "MB", "1e3": "kB"}


def test_a_gb_is_a_billion_bytes() -> None:
    for size, unit in UNITS.items():
        assert show_bytes(float(size)) == f"1.0 {unit}"
    assert show_bytes(999) == "999 B"
    page = (PACKAGE / "serving" / "static" / "run_format.js").read_text("utf-8")
    units = ", ".join(f'[{size}, " {unit}"]' for size, unit in UNITS.items())
    assert f"[{units}]" in page


def test_nothing_else_divides_bytes_into_units() -> None:
    for file in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("static/*.js")]:
        found = re.findall(
            r"/ ?[\d(][\de*_ ]*[^}\n]*\} ?[kMGT]i?B|[KMG]iB\b", file.read_text("utf-8")
        )
        assert [one for one in found if one != "GiB" or file.name != "hardware.py"] == [], file
