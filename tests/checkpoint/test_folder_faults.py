"""Each call to the disk fails in turn; the last good checkpoint survives all of them."""

import builtins
import errno
import io
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from groundup.checkpoint import CheckpointFolder

from .made_states import check, save

CALLS = "open fsync replace rename mkdir unlink rmdir listdir scandir stat".split()


class Disk:
    """Counts the calls to the disk and makes one of them fail, or all from that one on, like a kill
    at that call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_calls, self.failing_call, self.stays_full, self.came = 0, -1, False, False
        watched: Any = [*((os, name) for name in CALLS), (io, "open"), (builtins, "open")]
        for module, name in watched:
            monkeypatch.setattr(module, name, self._watched(getattr(module, name), name))

    def arm(self, failing_call: int) -> None:
        self.num_calls, self.failing_call, self.came = 0, failing_call, False

    def disarm(self) -> None:
        self.failing_call = -1

    def _watched(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            number, self.num_calls = self.num_calls, self.num_calls + 1
            if number == self.failing_call or (self.stays_full and 0 <= self.failing_call < number):
                self.came = True
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            # Real syncs would only be slow: there is no power failure here.
            return None if name == "fsync" else function(*arguments, **options)

        return call


def each_fault(disk: Disk, template: Path, work: Path) -> Iterator[CheckpointFolder]:
    """Yield a fresh copy of the template for each call of a save, until a save succeeds."""
    for failing_call in range(1000):
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(template, work)
        disk.arm(failing_call)
        yield CheckpointFolder(work, keep_last=2)
        if not disk.came:
            assert failing_call > 15
            return
    pytest.fail("a save does not end")


def hidden(folder: CheckpointFolder) -> list[str]:
    return [name for name in os.listdir(folder.path) if name.startswith(".")]


@pytest.mark.slow
@pytest.mark.parametrize("stays_full", [False, True])
@pytest.mark.parametrize("step", [4, 3], ids=["new", "replacing"])
def test_a_failure_of_any_call_keeps_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, stays_full: bool
) -> None:
    disk = Disk(monkeypatch)
    disk.stays_full = stays_full
    template = CheckpointFolder(tmp_path / "template")
    for old, metric in ((1, 0.5), (2, 3.0), (3, 2.0)):
        save(template, old, metric=metric)
    for folder in each_fault(disk, template.path, tmp_path / "work"):
        failure = None
        try:
            save(folder, step, seed=40, metric=1.0)
        except OSError as error:
            failure = error
        disk.disarm()
        newest = folder.newest()
        seed = newest.state["seed"]
        check(newest, seed)
        check(folder.best(), 1)
        if failure is None:
            assert (newest.step, seed) == (step, 40)
        else:
            assert (newest.step, seed) in ((3, 3), (step, 40))
            assert failure.filename == str(folder.path / f"step_00000{step}")
            assert folder.steps()[:3] == [1, 2, 3]
        if not stays_full:
            assert newest.path == folder.path / f"step_00000{newest.step}"
            assert hidden(folder) == [] or seed == 40
        save(folder, 5, metric=4.0)
        check(folder.newest(), 5)
        check(folder.best(), 1)
        assert hidden(folder) == []
        assert folder.steps() in ([1, 4, 5], [1, 3, 5])
        check(folder.load(newest.step), seed)
