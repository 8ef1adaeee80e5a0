"""Fast data parallel, FSDP2, HSDP and Muon on two ranks."""

from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("sharding_program.py")


def test_two_ranks_learn_what_one_process_does(run_program: Any) -> None:
    run_program(PROGRAM)
