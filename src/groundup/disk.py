"""The only module of the package that writes to disk.

All data that must survive a crash or power failure goes through these few calls, so that a test can
record them, truncate the history anywhere, and check what a disk would have kept. POSIX guarantees
a file's content only after fsync of the file, and its name only after fsync of the folder.
"""

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

PathLike = str | os.PathLike[str]

# Without O_NONBLOCK, opening a pipe would block forever.
TO_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW
TO_REPLACE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def open_file(path: PathLike, flags: int) -> int:
    """Open a file descriptor for writing; close it with `os.close`. Only regular files are appended
    to, and not through links: the folder may be from somebody else."""
    file = os.open(path, flags | os.O_CLOEXEC, 0o666)
    if flags & os.O_APPEND and not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def open_stream(path: PathLike, *, append: bool = False) -> BinaryIO:
    """Open a buffered file for writing."""
    return open(open_file(path, TO_APPEND) if append else path, "ab" if append else "wb", 1 << 18)


def write(file: int, data: bytes | memoryview) -> None:
    """Write all of the data."""
    while data:
        data = data[os.write(file, data) :]


def write_file(path: PathLike, data: bytes) -> None:
    """Replace the content of a file."""
    file = open_file(path, TO_REPLACE)
    try:
        write(file, memoryview(data))
    finally:
        os.close(file)


def truncate(file: int, size: int) -> None:
    os.ftruncate(file, size)


def sync(path: PathLike | int) -> None:
    """Make the content of a file, or the names in a folder, survive a power failure."""
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
    """Rename a file, replacing the destination."""
    os.replace(old, new)


def rename(old: PathLike, new: PathLike) -> None:
    """Rename a folder."""
    os.rename(old, new)


def remove(path: PathLike) -> None:
    """Remove a file if it exists."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def remove_tree(path: PathLike) -> None:
    """Remove a folder and its contents, or a link to a folder but not what it leads to."""
    if os.path.islink(path):
        os.unlink(path)
        return
    for parent, folders, files in os.walk(path, topdown=False):
        for name in files:
            os.unlink(os.path.join(parent, name))
        for name in folders:
            inner = os.path.join(parent, name)
            (os.unlink if os.path.islink(inner) else os.rmdir)(inner)
    os.rmdir(path)


def make_new(path: PathLike, *, is_folder: bool) -> None:
    """Create an empty file or folder, without syncing."""
    if is_folder:
        os.mkdir(path)
    else:
        os.close(open_file(path, os.O_WRONLY | os.O_CREAT))


def make_folder(path: PathLike) -> None:
    """Create a folder and its missing parents, durably."""
    folder = Path(path)
    missing = [one for one in (folder, *folder.parents) if not one.is_dir()]
    for one in reversed(missing):
        try:
            os.mkdir(one)
        except FileExistsError:
            if not one.is_dir():
                raise
        sync(one.parent)
