"""Run by test_folder_kills: forks writers of checkpoints, kills them, looks at what they left.

One process, so that torch is imported once for all of them.
"""

import itertools
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import torch

from conftest import check_made, save_made
from groundup.checkpoint import CheckpointFolder


def kill_at_random_moments(path: Path, num_kills: int) -> None:
    """Each writer goes on from the newest checkpoint and saves until it is killed."""
    folder = CheckpointFolder(path, keep_last=2)
    random_ = random.Random()
    for _ in range(num_kills):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            save_forever(folder, writer)
        os.close(writer)
        # The first save is waited for; the kill comes anywhere in those that follow.
        reports = [os.read(reader, 8)]
        time.sleep(random_.uniform(0.0, 0.08))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while report := os.read(reader, 8):
            reports.append(report)
        os.close(reader)
        newest = folder.newest()
        check_made(newest, newest.state["seed"])
        assert newest.step >= int.from_bytes(reports[-1], "little"), "a finished save was lost"
        check_made(folder.best(), folder.best().state["seed"])
    save_made(folder, folder.newest().step + 1, metric=0.0)
    assert not hidden_names(folder)


def save_forever(folder: CheckpointFolder, reports: int) -> NoReturn:
    first = folder.newest().step + 1 if folder.steps() else 1
    for step in itertools.count(first):
        save_made(folder, step, metric=1.0 / step)
        # Every third step is saved twice, so that replacing is interrupted too.
        if step % 3 == 0:
            save_made(folder, step, seed=step + 1, metric=1.0 / step)
        os.write(reports, step.to_bytes(8, "little"))
    raise AssertionError


def hidden_names(folder: CheckpointFolder) -> list[str]:
    return [name for name in os.listdir(folder.path) if name.startswith(".")]


if __name__ == "__main__":
    torch.set_num_threads(1)
    kill_at_random_moments(Path(sys.argv[1]), num_kills=8)
