"""A real SIGKILL at every call that reaches the disk, and at random moments."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("killed_writers.py")


def run(mode: str, path: Path) -> None:
    command = [sys.executable, "-W", "error", str(SCRIPT), mode, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_kill_at_a_random_moment_leaves_a_good_checkpoint(tmp_path: Path) -> None:
    run("random", tmp_path)


@pytest.mark.parametrize("mode", ["new", "replacing"])
def test_a_kill_at_any_call_leaves_a_good_checkpoint(memory_path: Path, mode: str) -> None:
    run(mode, memory_path)
