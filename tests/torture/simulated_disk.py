"""A disk that remembers every write, sync and rename, and what a loss of power may leave of them.

`Recorder` takes the place of `os` in groundup.disk while a real run writes below one folder; what
libraries write by themselves it finds by looking. `draw_histories` cuts the record anywhere and
lets what was not synced by then be kept, torn, zeroed or lost, in any order, as POSIX allows.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from groundup import disk

# What an inode holds: the bytes of a file, or the inodes of a folder by their names.
Content = bytes | dict[str, int]
State = dict[str, bytes | None]
"""What is left: the bytes of each file by its path, None for a folder."""

_ROOT = 0
_SECTOR = 512
_CHANGING = "open write ftruncate unlink rmdir mkdir rename replace".split()


@dataclass
class Recorder:
    """Calls `os`, and records what became of the tree below `root`."""

    root: str
    room: int = 1 << 60
    """How many operations there is room for."""
    history: list[tuple[Any, ...]] = field(default_factory=list)
    """("make", folder, name, inode, is_folder), ("move", folder, old, new, inode),
    ("drop", folder, name), ("write", inode, begin, data), ("cut", inode, size), ("sync", inode),
    and ("mark", what the run has promised by then)."""

    def __post_init__(self) -> None:
        # By the number that the system has for it, which it may use again, each inode's own.
        self._inodes = {os.stat(self.root).st_ino: _ROOT}
        self._tree: dict[tuple[int, str], int] = {}
        self._seen: dict[int, tuple[int, int]] = {}
        self._contents: dict[int, bytes] = {}
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
            found = dict(_list(self.root))
            before, self._tree = self._tree, {key: one.st_ino for key, (_, one) in found.items()}
            gone = {before[key]: key for key in before if self._tree.get(key) != before[key]}
            for key, number in self._tree.items():
                if before.get(key) == number:
                    continue
                folder, name = self._inodes[key[0]], key[1]
                if number in gone:
                    old = gone.pop(number)[1]
                    self.history.append(("move", folder, old, name, self._inodes[number]))
                else:
                    self._inodes[number] = inode = len(self.history) + 1
                    is_folder = stat.S_ISDIR(found[key][1].st_mode)
                    self.history.append(("make", folder, name, inode, is_folder))
            for key in gone.values():
                if key not in found and key[0] in self._inodes:
                    self.history.append(("drop", self._inodes[key[0]], key[1]))
            for number in gone:
                self._seen.pop(number, None)
                self._contents.pop(self._inodes.pop(number), None)
            for path, one in found.values():
                seen = one.st_size, one.st_mtime_ns
                if stat.S_ISREG(one.st_mode) and self._seen.get(one.st_ino) != seen:
                    self._seen[one.st_ino] = seen
                    self._look_into(path, self._inodes[one.st_ino])

    def _look_into(self, path: str, inode: int) -> None:
        old = self._contents.get(inode, b"")
        self._contents[inode] = new = Path(path).read_bytes()
        if not new.startswith(old):
            old = new if old.startswith(new) else b""
            self.history.append(("cut", inode, len(old)))
        if new != old:
            self.history.append(("write", inode, len(old), new[len(old) :]))


def _list(folder: str) -> Iterator[tuple[tuple[int, str], tuple[str, os.stat_result]]]:
    """Everything below by folder and name, folders before what is in them."""
    number = os.stat(folder).st_ino
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        with contextlib.suppress(FileNotFoundError):
            yield (number, entry.name), (entry.path, entry.stat(follow_symlinks=False))
            if entry.is_dir(follow_symlinks=False):
                yield from _list(entry.path)


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
                if kind == "make":
                    inodes[rest[1]] = _Inode({} if rest[2] else b"")
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
                content = _apply(content, _torn(operation, rng) if chance < 1 else operation)
            elif operation[0] == "write" and rng.random() < 0.3:
                # The size is kept with the folder's entry, and so may be there before the bytes.
                content = _apply(content, (*operation[:3], bytes(len(operation[3]))))
        yield number, content


def _torn(operation: tuple[Any, ...], rng: random.Random) -> tuple[Any, ...]:
    """A write of which some sectors never arrived, most often not."""
    if operation[0] != "write" or rng.random() < 0.7:
        return operation
    data = operation[3]
    begin = rng.randrange(len(data) + 1)
    if rng.random() < 0.5:
        return (*operation[:3], data[:begin])
    begin -= begin % _SECTOR
    lost = len(data[begin : begin + _SECTOR])
    return (*operation[:3], data[:begin] + bytes(lost) + data[begin + lost :])


def _apply(content: Content, operation: tuple[Any, ...]) -> Content:
    kind, _, *rest = operation
    if isinstance(content, bytes):
        begin, data = rest[0], b"" if kind == "cut" else rest[1]
        behind = b"" if kind == "cut" else content[begin + len(data) :]
        return content[:begin].ljust(begin, b"\0") + data + behind
    entries = dict(content)
    if kind == "make":
        entries[rest[0]] = rest[1]
    elif kind == "drop":
        entries.pop(rest[0], None)
    else:
        old, new, inode = rest
        if entries.get(old) == inode:
            del entries[old]
        entries[new] = inode
    return entries


def _tree(left: dict[int, Content], inode: int, path: str) -> Iterator[tuple[str, bytes | None]]:
    content = left[inode]
    if isinstance(content, bytes):
        yield path, content
        return
    if path:
        yield path, None
    for name, inner in sorted(content.items()):
        yield from _tree(left, inner, f"{path}/{name}" if path else name)
