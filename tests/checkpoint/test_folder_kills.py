"""A real SIGKILL at random moments; test_folder_faults.py ends a save at every call.

The test runs this file: one process forks all writers, so that torch is imported once.
"""

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import torch
from made_states import check, save

from groundup.checkpoint import CheckpointFolder


def test_a_kill_at_any_moment_leaves_a_good_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", __file__, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def kill_at_random_moments(path: Path, num_kills: int) -> None:
    """Each writer goes on from the newest checkpoint and saves until it is killed."""
    folder = CheckpointFolder(path, keep_last=2)
    for _ in range(num_kills):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            save_forever(folder, writer)
        os.close(writer)
        # The first save is waited for; the kill comes anywhere in those that follow.
        reports = [os.read(reader, 8)]
        time.sleep(random.uniform(0.0, 0.08))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while report := os.read(reader, 8):
            reports.append(report)
        os.close(reader)
        newest = folder.newest()
        check(newest, newest.state["seed"])
        assert newest.step >= int.from_bytes(reports[-1], "little"), "a finished save was lost"
        check(folder.best(), folder.best().state["seed"])
    save(folder, folder.newest().step + 1, metric=0.0)
    assert not [name for name in os.listdir(path) if name.startswith(".")]


def save_forever(folder: CheckpointFolder, reports: int) -> NoReturn:
    for step in itertools.count(folder.newest().step + 1 if folder.steps() else 1):
        save(folder, step, metric=1.0 / step)
        # Every third step is saved twice, so that replacing is interrupted too.
        if step % 3 == 0:
            save(folder, step, seed=step + 1, metric=1.0 / step)
        os.write(reports, step.to_bytes(8, "little"))
    raise AssertionError


if __name__ == "__main__":
    torch.set_num_threads(1)
    kill_at_random_moments(Path(sys.argv[1]), num_kills=8)
