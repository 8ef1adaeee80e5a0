"""Disks that are full or read-only under every verb that writes; then space, and the same again."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from artefacts import Artefacts
from harness import Case, Child, Impossible, Lost
from verbs import VERBS, finish, undisturbed, verbs_of

_ROOMY = "size=64m"


def fill(case: Case) -> None:
    """A disk with room for some of the output, or for none of it."""
    name = case.pick(verbs_of(case))
    _, _, size = undisturbed(case, name)
    room = int(size * case.random.uniform(0.0, 1.0))
    words = VERBS[name].words(Artefacts(case.work))
    if case.random.random() < 0.5:
        case.row = f"file size limited: {name}"
        # The limit of one file is met like a full disk; it needs no rights.
        room = max(1, room // 4)
        limit = (room, resource.RLIM_INFINITY)
        ended = Child(case.place, words, lambda: _limit_files(case.place, limit)).wait()
        ended.check()
        finish(case, name)
        return
    case.row = f"disk full: {name}"
    with _disk(case.place, f"size={max(4096, room)}") as remount:
        ended = Child(case.place, words).wait()
        ended.check()
        remount(_ROOMY)
        finish(case, name)


def freeze(case: Case) -> None:
    """A disk that can be read only."""
    name = case.pick(verbs_of(case))
    case.row = f"read-only disk: {name}"
    before = undisturbed(case, name)
    with _disk(case.place, _ROOMY) as remount:
        remount("ro")
        ended = Child(case.place, VERBS[name].words(Artefacts(case.work))).wait()
        ended.check()
        if ended.status == 0 and before[0]:
            raise Lost("it said that it had written to a read-only disk")
        remount("rw")
        finish(case, name)


def _limit_files(place: Path, limit: tuple[int, int]) -> None:
    # Its own words must still find room.
    for number, name in ((1, "out"), (2, "error")):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.close(writer)
            with open(Path(f"{place}.logs") / name, "wb") as file:
                while data := os.read(reader, 1 << 16):
                    file.write(data)
                    file.flush()
            os._exit(0)
        os.dup2(writer, number)
        os.close(reader)
        os.close(writer)
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)


@contextlib.contextmanager
def _disk(place: Path, options: str) -> Iterator[Callable[[str], int]]:
    if os.geteuid() != 0:
        raise Impossible("only root can mount a disk of a few kilobytes")
    if _mount("-t", "tmpfs", "-o", options, "none", str(place)):
        raise Impossible("this machine lets nobody mount a disk")
    try:
        yield lambda options: _mount("-o", f"remount,{options}", str(place))
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)


def _mount(*words: str) -> int:
    try:
        return subprocess.run(["mount", *words], check=False, capture_output=True).returncode
    except OSError:
        return 1
