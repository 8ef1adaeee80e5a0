"""A trial does not outlive its sweep, however that ends."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from groundup.experiments import die_with_parent
from groundup.files import locked

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux can do it")

# For a test that fails: no machine is so slow.
PATIENCE_SECONDS = 120.0

START = [sys.executable, "-P", "-S", die_with_parent.__file__]

SWEEP = """
import sys
from pathlib import Path
from groundup.experiments.spec import load_sweep
from groundup.experiments.sweep import run_sweep
script, file, folder = sys.argv[1:]
run_sweep(load_sweep(file), Path(folder), command=lambda c, _: [sys.executable, script, str(c)])
"""


def test_a_command_whose_parent_is_gone_already_is_not_begun(tmp_path: Path) -> None:
    touch = f"open({str(tmp_path / 'begun')!r}, 'w')"
    ended = subprocess.run([*START, "0", sys.executable, "-c", touch], timeout=PATIENCE_SECONDS)
    assert ended.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_trials_die_with_a_sweep_that_is_killed(tmp_path: Path) -> None:
    # So low a rate that the trial stops halfway and waits.
    base = {"num_steps": 4, "device": "cpu", "optimizer": {"learning_rate": 1e-7}}
    file, folder = tmp_path / "sweep.yaml", tmp_path / "sweep"
    file.write_text(yaml.safe_dump({"name": "small", "base": base}))
    script = str(Path(__file__).with_name("metrics_only.py"))
    run = folder / "runs" / "seed=0"
    with subprocess.Popen([sys.executable, "-c", SWEEP, script, str(file), str(folder)]) as sweep:
        try:
            wait_until(lambda: (run / "metrics.jsonl").exists())
            assert is_held(run)
        finally:
            sweep.kill()
        wait_until(lambda: not is_held(run))


def is_held(folder: Path) -> bool:
    with locked(folder) as is_free:
        return not is_free


def wait_until(condition) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it never came true")
