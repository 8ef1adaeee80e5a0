"""Run by test_folder_kills: forks writers of checkpoints, kills them, looks at what they left.

One process, so that torch is imported once for all of them.
"""

import io
import itertools
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

from conftest import check_made, save_made
from groundup.checkpoint import CheckpointFolder

WATCHED = ["open", "fsync", "replace", "rename", "mkdir", "unlink", "rmdir", "close"]


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


def kill_at_every_call(path: Path, step: int, seed: int) -> None:
    """A writer that saves one step over a folder with steps 1, 2, 3 dies at each call in turn."""
    template = CheckpointFolder(path / "template")
    for other in (1, 2, 3):
        save_made(template, other, metric=float(other))
    for fatal_call in itertools.count():
        folder = CheckpointFolder(path / f"work-{fatal_call}", keep_last=2)
        shutil.copytree(template.path, folder.path)
        child = os.fork()
        if child == 0:
            die_at(fatal_call)
            save_made(folder, step, seed, metric=9.0)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        newest = folder.newest()
        expected = {3: (3, seed) if step == 3 else (3,), 4: (seed,)}[newest.step]
        assert newest.state["seed"] in expected
        check_made(newest, newest.state["seed"])
        check_made(folder.best(), 1)
        save_made(folder, 5, metric=9.0)
        assert not hidden_names(folder)
        check_made(folder.load(newest.step), newest.state["seed"])
        shutil.rmtree(folder.path)
        if status == 0:
            assert newest.state["seed"] == seed
            assert fatal_call > 30
            return
        assert os.WIFSIGNALED(status), "the writer failed instead of being killed"


def die_at(fatal_call: int) -> None:
    calls = itertools.count()

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if next(calls) == fatal_call:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    for name in WATCHED:
        setattr(os, name, watched(getattr(os, name)))
    io.open = watched(io.open)


def hidden_names(folder: CheckpointFolder) -> list[str]:
    return [name for name in os.listdir(folder.path) if name.startswith(".")]


if __name__ == "__main__":
    torch.set_num_threads(1)
    disk, memory = Path(sys.argv[1]), Path(sys.argv[2])
    kill_at_random_moments(disk, num_kills=8)
    kill_at_every_call(memory / "new", step=4, seed=4)
    kill_at_every_call(memory / "replacing", step=3, seed=30)
