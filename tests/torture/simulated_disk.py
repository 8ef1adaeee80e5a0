"""A disk that remembers every write, sync and rename, and what a loss of power may leave of them.

`Recorder` takes the place of `os` in groundup.disk while a real run writes below one folder; what
libraries write by themselves it finds by looking. `draw_histories` cuts the record anywhere and
lets what was not synced by then be kept, torn, zeroed or lost, in any order, as POSIX allows.
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
"""A number of our own for an inode, and whether it is a folder."""
Content = bytes | dict[str, Entry]
"""What an inode holds: the bytes of a file, or what a folder has by name."""
State = dict[str, bytes | None]
"""What is left: the bytes of each file by its path, None for a folder."""

_ROOT = 0
_CHANGING = "open write ftruncate unlink rmdir mkdir rename replace".split()


@dataclass
class Recorder:
    """Calls `os`, and records what became of the tree below `root`."""

    root: str
    room: int = 1 << 60
    """How many operations there is room for."""
    history: list[tuple[Any, ...]] = field(default_factory=list)
    """("names", folder, changed entries, None for one that is gone), ("write", inode, begin, data),
    ("cut", inode, size), ("sync", inode), and ("mark", what the run has promised by then)."""

    def __post_init__(self) -> None:
        # By the number that the system has for it, which it may use again.
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
        """A function of `os`; around those that change something the tree is looked at."""
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
        """Of a real disk nothing is asked: it would take its time."""
        with self._lock:
            self.look()
            inode = self._inodes.get(os.fstat(file).st_ino)
            if inode is not None:
                self.history.append(("sync", inode))

    def look(self) -> None:
        """Record how the tree has changed since the last look."""
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
    """Everything below with the number of its folder, folders before what is in them."""
    with contextlib.suppress(FileNotFoundError):
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            yield number, entry
            if entry.is_dir(follow_symlinks=False):
                yield from _list(entry.path, entry.inode())


@dataclass
class _Inode:
    """What is on the disk for sure, and what was done since; each with its time."""

    content: Content
    pending: list[tuple[int, tuple[Any, ...]]] = field(default_factory=list)


def draw_histories(
    history: list[tuple[Any, ...]], seed: str, count: int
) -> Iterator[tuple[int, State, list[Any]]]:
    """Some histories by number, each a moment and a choice of what is kept: what is left of the
    files, and the promises made by then."""
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
    """Each inode with what the loss of power leaves of it."""
    # A kill keeps all; a journal keeps what came first; a disk without one keeps what it likes.
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
                # The size is kept with the folder's entry, and so may be there before the bytes.
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
