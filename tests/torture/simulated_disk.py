"""A disk that records every write, sync and rename, and simulates power failures.

`Recorder` replaces `os` in groundup.disk while a real run writes below a folder; it finds what
libraries write by scanning the tree. `sample_histories` truncates the record anywhere; operations
that were not synced by then are kept, torn, zeroed or lost, in any order, as POSIX allows.
"""

import contextlib
import errno
import itertools
import os
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from mutations import tear

from groundup import disk

Entry = tuple[int, bool]
"""Our own inode number, and whether it is a folder."""
Content = bytes | dict[str, Entry]
"""The content of an inode: the bytes of a file, or the entries of a folder."""
State = dict[str, bytes | None]
"""The state of a disk: the bytes of each file by path, None for a folder."""

_ROOT = 0
_CHANGING = "open write ftruncate unlink rmdir mkdir rename replace".split()


@dataclass
class Recorder:
    """Calls `os`, and records all changes to the tree below `root`."""

    root: str
    room: int = 1 << 60
    """The number of operations until the disk is full."""
    history: list[tuple[Any, ...]] = field(default_factory=list)
    """("names", folder, changed entries, None if removed), ("write", inode, begin, data),
    ("cut", inode, size), ("sync", inode), and ("mark", a guarantee that the run has given)."""

    def __post_init__(self) -> None:
        # By the system's inode number, which may be reused.
        self._inodes: dict[int, int] = {}
        self._folders: dict[int, dict[str, Entry]] = {}
        self._files: dict[int, tuple[tuple[int, int], bytes]] = {}
        self._count = itertools.count(1)
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        with mock.patch.object(disk, "os", self):
            yield
        self.look()

    def mark(self, promise: object) -> None:
        with self._lock:
            self.look()
            self.history.append(("mark", promise))

    def __getattr__(self, name: str) -> Any:
        """Wrap a function of `os`; before and after functions that change the tree, scan it."""
        real = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                self.look()
                if name == "write" and len(self.history) > self.room:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                try:
                    return real(*arguments, **options)
                finally:
                    self.look()

        return call if name in _CHANGING else real

    def fsync(self, file: int) -> None:
        """Record the sync, without syncing the real disk, which would be slow."""
        with self._lock:
            self.look()
            inode = self._inodes.get(os.fstat(file).st_ino)
            if inode is not None:
                self.history.append(("sync", inode))

    def look(self) -> None:
        """Record the changes to the tree since the last scan."""
        with self._lock:
            inodes, files = {os.stat(self.root).st_ino: _ROOT}, list[tuple[int, os.DirEntry[str]]]()
            folders: dict[int, dict[str, Entry]] = {_ROOT: {}}
            for folder, entry in _list(self.root, os.stat(self.root).st_ino):
                number, is_folder = entry.inode(), entry.is_dir(follow_symlinks=False)
                inodes[number] = inode = self._inodes.get(number) or next(self._count)
                folders[inodes[folder]][entry.name] = inode, is_folder
                if is_folder:
                    folders[inode] = {}
                else:
                    files.append((inode, entry))
            for folder, now in folders.items():
                before = self._folders.get(folder, {})
                names = [one for one in {**before, **now} if before.get(one) != now.get(one)]
                if names:
                    self.history.append(("names", folder, {name: now.get(name) for name in names}))
            self._inodes, self._folders = inodes, folders
            for inode, entry in files:
                with contextlib.suppress(FileNotFoundError):
                    self._look_into(inode, entry)

    def _look_into(self, inode: int, entry: os.DirEntry[str]) -> None:
        one, (seen, old) = entry.stat(), self._files.get(inode, ((0, 0), b""))
        if seen == (one.st_size, one.st_mtime_ns):
            return
        new = Path(entry.path).read_bytes()
        self._files[inode] = (one.st_size, one.st_mtime_ns), new
        kept = old if new.startswith(old) else new if old.startswith(new) else b""
        if kept != old:
            self.history.append(("cut", inode, len(kept)))
        if new != kept:
            self.history.append(("write", inode, len(kept), new[len(kept) :]))


def _list(path: str, number: int) -> Iterator[tuple[int, os.DirEntry[str]]]:
    """Yield all entries below, with their folder's inode number, parents first."""
    with contextlib.suppress(FileNotFoundError):
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            yield number, entry
            if entry.is_dir(follow_symlinks=False):
                yield from _list(entry.path, entry.inode())


@dataclass
class _Inode:
    """The content that is durable, and the pending operations since, with their times."""

    content: Content
    pending: list[tuple[int, tuple[Any, ...]]] = field(default_factory=list)


def sample_histories(
    history: list[tuple[Any, ...]], seed: str, count: int
) -> Iterator[tuple[int, State, list[Any]]]:
    """Yield histories, each a random moment of power failure and a choice of what is kept: number,
    state of the disk, and the guarantees given by then."""
    randoms = [random.Random(f"{seed}/{number}") for number in range(count)]
    times = [one.randrange(len(history) + 1) for one in randoms]
    inodes, marks, time = {_ROOT: _Inode({})}, list[Any](), 0
    for number in sorted(range(count), key=times.__getitem__):
        for operation in history[time : times[number]]:
            kind, first, *rest = operation
            if kind == "mark":
                marks.append(first)
            elif kind == "sync":
                for _, done in inodes[first].pending:
                    inodes[first].content = _apply(inodes[first].content, done)
                inodes[first].pending = []
            else:
                for inode, is_folder in filter(None, rest[0].values()) if kind == "names" else ():
                    inodes.setdefault(inode, _Inode({} if is_folder else b""))
                inodes[first].pending.append((time, operation))
            time += 1
        left = dict(_survivors(inodes, time, randoms[number]))
        yield number, dict(_tree(left, _ROOT, "")), list(marks)


def _survivors(
    inodes: dict[int, _Inode], now: int, rng: random.Random
) -> Iterator[tuple[int, Content]]:
    """Yield each inode with its content after the power failure."""
    # A kill keeps everything; a journal keeps a prefix; a disk without one keeps any subset.
    chances = [1.0, 1.0] if rng.random() < 0.2 else rng.choices((0.0, 0.2, 0.5, 0.8, 1.0), k=2)
    until = rng.randrange(now + 1) if rng.random() < 0.3 else now
    for number, inode in inodes.items():
        content, chance = inode.content, chances[isinstance(inode.content, dict)]
        for time, operation in inode.pending:
            if time < until and rng.random() < chance:
                if operation[0] == "write" and chance < 1 and rng.random() < 0.3:
                    operation = (*operation[:3], tear(operation[3], rng))
                content = _apply(content, operation)
            elif operation[0] == "write" and rng.random() < 0.3:
                # The size is metadata, which may be durable before the data.
                content = _apply(content, (*operation[:3], bytes(len(operation[3]))))
        yield number, content


def _apply(content: Content, operation: tuple[Any, ...]) -> Content:
    kind, _, *rest = operation
    if isinstance(content, dict):
        return {name: entry for name, entry in {**content, **rest[0]}.items() if entry}
    begin, data = rest[0], b"" if kind == "cut" else rest[1]
    behind = b"" if kind == "cut" else content[begin + len(data) :]
    return content[:begin].ljust(begin, b"\0") + data + behind


def _tree(left: dict[int, Content], inode: int, path: str) -> Iterator[tuple[str, bytes | None]]:
    content = left[inode]
    if isinstance(content, bytes):
        yield path, content
        return
    if path:
        yield path, None
    for name, (inner, _) in sorted(content.items()):
        yield from _tree(left, inner, f"{path}/{name}" if path else name)
