"""A minute of `make torture`: a few faults of each kind, the same ones always."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TORTURE = Path(__file__).parent


@pytest.mark.slow
def test_what_a_loss_of_power_leaves_is_continued_with_the_same_bits(tmp_path: Path) -> None:
    """200 histories; `make torture` tries ten thousand."""
    import histories
    from harness import Case

    histories.make_artefacts(tmp_path / "made")
    for number, name in enumerate(("train", "prepare", "export", "sweep", "train")):
        case = Case("power", 1, number, tmp_path)
        case.place.mkdir(parents=True)
        histories.lose_power(case, name, range(40), 2)
        assert case.counts["states"] > 10 and case.counts["continued"] == 2


# Two processes: what the second needs is imported, and the artefacts are made, once.
@pytest.mark.parametrize("options", [["--only", "native"], []], ids=["native", "everything else"])
def test_every_fault_is_survived(options: list[str], tmp_path: Path) -> None:
    if not options:
        kinds = ("damage", "fuzz", "clients", "forged")
        options = [word for kind in kinds for word in ("--only", kind)]
    command = [sys.executable, str(TORTURE), "--quick", "--jobs", "1", "--work", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(TORTURE.parents[1] / "src")}
    done = subprocess.run([*command, *options], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


# Of four cases one breaks a promise and one takes its process with it.
FOUR_CASES = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from harness import Case, Kind, Lost, Results, run_kind

def inject(case):
    case.row = "row"
    if case.number == 1:
        raise Lost("a reason")
    if case.number == 2:
        os._exit(3)

results = Results()
make_case = lambda number: Case("kind", 7, number, Path(sys.argv[2]))
run_kind(Kind("kind", inject, 1.0, 4), make_case, results, 2, 4, 60.0)
print(sum(row.faults for row in results.rows.values()), *results.losses.items(), sep="\\n")
"""


def test_a_loss_and_a_crash_are_told_with_the_commands_that_show_them_again(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FOUR_CASES, str(TORTURE), str(tmp_path)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[0] == "4" and len(lines) == 3
    assert any("a reason" in line and "--seed 7 --case kind/1" in line for line in lines)
    assert any("ended with status 3" in line and "--case kind/2" in line for line in lines)
