"""Every call that reaches the disk fails in turn; the last good checkpoint outlives each."""

import builtins
import errno
import io
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from made_states import check, save

from groundup.checkpoint import CheckpointFolder

FAULTS = ["ENOSPC", "EIO", "torn", "all that follow"]
WRITING_CALLS = ["open", "fsync", "replace", "rename", "mkdir", "io.open"]
OTHER_CALLS = ["unlink", "rmdir", "listdir", "scandir", "stat"]


class Disk:
    """Counts the calls that reach the disk and makes one of them fail, or all from it on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_calls = 0
        self.failing_call: int | None = None
        self.fault = ""
        self.came = False
        for name in (*WRITING_CALLS[:-1], *OTHER_CALLS):
            monkeypatch.setattr(os, name, self._watched(getattr(os, name), name))
        opened = self._watched(io.open, "io.open")
        for module in (io, builtins):
            monkeypatch.setattr(module, "open", lambda *a, **k: WatchedFile(self, opened(*a, **k)))

    def arm(self, failing_call: int, fault: str) -> None:
        self.num_calls, self.failing_call, self.fault, self.came = 0, failing_call, fault, False

    def disarm(self) -> None:
        self.failing_call = None

    def fails_now(self) -> bool:
        if self.failing_call is None:
            return False
        number, self.num_calls = self.num_calls, self.num_calls + 1
        is_late = number > self.failing_call and self.fault == "all that follow"
        self.came |= number >= self.failing_call
        return number == self.failing_call or is_late

    def error(self) -> OSError:
        code = errno.ENOSPC if self.fault == "ENOSPC" else errno.EIO
        return OSError(code, os.strerror(code))

    def _watched(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            # Only what takes space can find the disk full, and only writes can be torn.
            is_concerned = name in WRITING_CALLS or self.fault != "ENOSPC"
            if is_concerned and self.fault != "torn" and self.fails_now():
                raise self.error()
            # Real syncs would only make the many rounds slow: no power is cut here.
            return None if name == "fsync" else function(*arguments, **options)

        return call


class WatchedFile:
    """A file whose writes may fail, or stop half-way."""

    def __init__(self, disk: Disk, file: Any) -> None:
        self.disk, self.file = disk, file

    def write(self, data: Any) -> int:
        if not self.disk.fails_now():
            return int(self.file.write(data))
        if self.disk.fault == "torn":
            self.file.write(data[: len(data) // 2])
        raise self.disk.error()

    def close(self) -> None:
        self.file.close()
        if self.disk.fault != "torn" and self.disk.fails_now():
            raise self.disk.error()

    def __enter__(self) -> "WatchedFile":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def each_fault(disk: Disk, fault: str, template: Path, work: Path) -> Iterator[CheckpointFolder]:
    """A fresh copy of the template for every call of a save, until a save meets no fault."""
    for failing_call in range(1000):
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(template, work)
        disk.arm(failing_call, fault)
        yield CheckpointFolder(work, keep_last=2)
        if not disk.came:
            assert failing_call > (0 if fault == "torn" else 15)
            return
    pytest.fail("a save does not end")


def hidden(folder: CheckpointFolder) -> list[str]:
    return [name for name in os.listdir(folder.path) if name.startswith(".")]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("step", [4, 3], ids=["new", "replacing"])
def test_a_fault_at_any_call_leaves_the_last_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, fault: str
) -> None:
    disk = Disk(monkeypatch)
    template = CheckpointFolder(tmp_path / "template")
    for old, metric in ((1, 0.5), (2, 3.0), (3, 2.0)):
        save(template, old, metric=metric)
    for folder in each_fault(disk, fault, template.path, tmp_path / "work"):
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
        if fault != "all that follow":
            assert newest.path == folder.path / f"step_00000{newest.step}"
            assert hidden(folder) == [] or seed == 40
        save(folder, 5, metric=4.0)
        check(folder.newest(), 5)
        check(folder.best(), 1)
        assert hidden(folder) == []
        assert folder.steps() in ([1, 4, 5], [1, 3, 5])
        check(folder.load(newest.step), seed)


def test_a_write_that_the_system_itself_cuts_short_leaves_the_last_good_one(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints")
    path = save(folder, 1)
    largest = max((path / name).stat().st_size for name in os.listdir(path))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in range(0, largest, 61):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            with pytest.raises(OSError) as caught:
                save(folder, 2)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert caught.value.errno == errno.EFBIG
        assert caught.value.filename == str(folder.path / "step_000002")
        assert os.listdir(folder.path) == ["step_000001"]
    check(folder.newest(), 1)


def test_old_ones_that_cannot_be_removed_are_reported_and_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints", keep_last=1)
    save(folder, 1)

    def refuse(path: Path) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", refuse)
        save(folder, 2)
    assert "Permission denied" in caplog.text and folder.steps() == [2]
    save(folder, 3)
    assert os.listdir(folder.path) == ["step_000003"]
    check(folder.newest(), 3)
