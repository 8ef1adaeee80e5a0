"""Reading files that others write to, and that anyone may have put there: what cannot be read is
absent, and neither a pipe nor a huge file holds the reader up."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def open_plain_file(path: Path) -> Iterator[int | None]:
    """A descriptor of a regular file to read from; None if no such file exists. Links are not
    followed: they could lead out of a folder that is shown to others."""
    file = None
    # Without O_NONBLOCK a pipe of that name would hold the reader for ever.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    with contextlib.suppress(OSError):
        file = os.open(path, flags)
    try:
        is_plain = file is not None and stat.S_ISREG(os.fstat(file).st_mode)
        yield file if is_plain else None
    finally:
        if file is not None:
            os.close(file)


def read_tail(path: Path, num_bytes: int) -> bytes:
    """The last bytes of a file; nothing if it cannot be read."""
    with open_plain_file(path) as file:
        if file is None:
            return b""
        size = os.fstat(file).st_size
        return os.pread(file, num_bytes, max(0, size - num_bytes))


def file_signature(path: Path) -> tuple[int, int, int] | None:
    """What changes when the content does: inode, size and time of the last change."""
    try:
        found = os.lstat(path)
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
