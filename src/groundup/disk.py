"""The only module of the package that writes to a disk.

Whatever is to outlast a kill or a loss of power goes through these few calls, so that a test can
record them, cut their history off anywhere, and look at what a disk would have kept. POSIX promises
the content of a file only once it is synced, and a name only once its folder is.
"""

import contextlib
import errno
import os
from pathlib import Path
from typing import BinaryIO

PathLike = str | os.PathLike[str]

TO_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND
TO_REPLACE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def open_file(path: PathLike, flags: int) -> int:
    """A descriptor to write to, which `os.close` closes."""
    return os.open(path, flags | os.O_CLOEXEC, 0o666)


def open_stream(path: PathLike, *, append: bool = False) -> BinaryIO:
    """A buffered file to write to."""
    return open(path, "ab" if append else "wb", 1 << 18)


def write(file: int, data: bytes | memoryview) -> None:
    """Write all of it."""
    while data:
        data = data[os.write(file, data) :]


def write_file(path: PathLike, data: bytes) -> None:
    """Let a file hold these bytes alone."""
    file = open_file(path, TO_REPLACE)
    try:
        write(file, memoryview(data))
    finally:
        os.close(file)


def truncate(file: int, size: int) -> None:
    os.ftruncate(file, size)


def sync(path: PathLike | int) -> None:
    """Make the content of a file, or the names in a folder, outlast a loss of power."""
    file = path if isinstance(path, int) else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    except OSError as error:
        # Some file systems cannot sync folders; the rename itself is still atomic there.
        if error.errno != errno.EINVAL:
            raise
    finally:
        if file is not path:
            os.close(file)


def replace(old: PathLike, new: PathLike) -> None:
    """Give a file another name, also that of one that is there."""
    os.replace(old, new)


def rename(old: PathLike, new: PathLike) -> None:
    """Give a folder another name."""
    os.rename(old, new)


def remove(path: PathLike) -> None:
    """Remove a file if it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def remove_tree(path: PathLike) -> None:
    """Remove a folder with all that is in it."""
    for parent, folders, files in os.walk(path, topdown=False):
        for name in files:
            os.unlink(os.path.join(parent, name))
        for name in folders:
            inner = os.path.join(parent, name)
            (os.unlink if os.path.islink(inner) else os.rmdir)(inner)
    os.rmdir(path)


def make_new(path: PathLike, *, is_folder: bool) -> None:
    """An empty file or folder, for now."""
    if is_folder:
        os.mkdir(path)
    else:
        os.close(open_file(path, os.O_WRONLY | os.O_CREAT))


def make_folder(path: PathLike) -> None:
    """Make a folder that lasts, and those it lies in, unless they are there."""
    folder = Path(path)
    missing = [one for one in (folder, *folder.parents) if not one.is_dir()]
    for one in reversed(missing):
        try:
            os.mkdir(one)
        except FileExistsError:
            if not one.is_dir():
                raise
        sync(one.parent)
