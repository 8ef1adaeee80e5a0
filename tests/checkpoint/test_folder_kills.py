"""A real SIGKILL at random moments; test_folder_faults.py ends a save at every call."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("killed_writers.py")


def test_a_kill_at_any_moment_leaves_a_good_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(SCRIPT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
