"""Atomic writes of files and folders, JSON lines, hashes and locks.

A file or folder is written next to its destination, synced and renamed, so that after a crash at
any moment the destination has either the old or the new content.
"""

import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import logging
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from groundup import disk
from groundup.errors import DataError

PathLike = str | os.PathLike[str]

_HIDDEN = re.compile(r"\.(?P<name>.+)\.(?P<role>writing|replaced|discarded)-[0-9a-f]{12}")
# Far above the depth of our own files, and far below Python's recursion limit.
_MAX_DEPTH = 100
_MAX_LINE_BYTES = 1 << 20

_log = logging.getLogger(__name__)

without_non_finite = functools.partial(to_jsonable_python, inf_nan_mode="null")
"""Converts a value for JSON, with null for NaN and infinities."""


@contextlib.contextmanager
def atomic_path(path: PathLike) -> Iterator[Path]:
    """Yield a temporary file next to `path`, which replaces `path` if the block succeeds.

    Creates missing parent folders. If the block raises, the temporary file is removed and `path`
    stays unchanged. Follows links; devices and pipes are written to directly.
    """
    destination = Path(os.path.realpath(path))
    if destination.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(destination))
    if destination.exists() and not destination.is_file():
        yield destination
        return
    with _temporary_beside(destination, destination.name) as temporary:
        yield temporary
        disk.sync(temporary)
        disk.replace(temporary, destination)


@contextlib.contextmanager
def atomic_folder(destination: Path) -> Iterator[Path]:
    """Yield a new folder next to `destination`, which replaces it if the block succeeds.

    Its files are synced first. If the block raises, the new folder is removed and `destination`
    stays unchanged.
    """
    with _temporary_beside(destination, None) as temporary:
        yield temporary
        for path, _, names in os.walk(temporary, topdown=False):
            for name in (*names, "."):
                disk.sync(Path(path, name))
        if not destination.exists():
            disk.rename(temporary, destination)
            return
        # A folder cannot be renamed over a non-empty one: move the old one aside, where
        # `find_folders` finds it if there is a crash before the next rename.
        aside = _hidden_sibling(destination, "replaced")
        with locked(destination, wait=True):
            disk.rename(destination, aside)
            try:
                disk.rename(temporary, destination)
            except BaseException:
                disk.rename(aside, destination)
                raise
            disk.sync(destination.parent)
            try:
                discard_folder(aside)
            except OSError as error:
                _log.warning("%s was replaced but cannot be removed: %s", aside, error.strerror)


def discard_folder(path: Path) -> None:
    """Delete a folder durably; a partially deleted folder never has its own name."""
    doomed = _hidden_sibling(path, "discarded")
    disk.rename(path, doomed)
    disk.sync(path.parent)
    disk.remove_tree(doomed)
    # Nothing else would remove it if it reappeared after a power failure.
    disk.sync(path.parent)


def find_folders(parent: Path) -> dict[str, Path]:
    """Return the folders in `parent` by name, including one that a crash left moved aside while it
    was being replaced."""
    try:
        folders = [path for path in parent.iterdir() if path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return {}
    hidden = {path: _HIDDEN.fullmatch(path.name) for path in folders}
    aside = {it["name"]: path for path, it in hidden.items() if it and it["role"] == "replaced"}
    return aside | {path.name: path for path, match in hidden.items() if match is None}


def is_leftover(name: str) -> bool:
    """Whether a name is that of a temporary file or folder of a killed writer."""
    return _HIDDEN.fullmatch(name) is not None


def remove_leftovers(parent: Path, name: str | None = None) -> None:
    """Remove or restore what killed writers left in `parent`, for one destination or all. Skips
    what running writers have locked."""
    names = os.listdir(parent)
    for hidden in filter(None, map(_HIDDEN.fullmatch, sorted(names))):
        path = parent / hidden[0]
        if name not in (None, hidden["name"]):
            continue
        try:
            with locked(path) as is_stale:
                if not is_stale:
                    continue
                if hidden["role"] == "replaced" and hidden["name"] not in names:
                    disk.rename(path, parent / hidden["name"])
                elif path.is_dir():
                    disk.remove_tree(path)
                else:
                    disk.remove(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            _log.warning("%s is left over but cannot be removed: %s", path, error.strerror)


def take_over(folder: Path) -> None:
    """Prepare an existing folder for writing: remove leftovers, and refuse links to files, pipes
    and devices, by which whoever made the folder could choose what is written to."""
    remove_leftovers(folder)
    for path in folder.iterdir():
        if not path.is_dir() and not stat.S_ISREG(path.lstat().st_mode):
            raise DataError(f"{path} is a link, pipe or device: replace it with a regular file")


def write_bytes_atomic(path: PathLike, data: bytes) -> None:
    """Replace the content of `path` with `data`."""
    with atomic_path(path) as temporary:
        try:
            disk.write_file(temporary, data)
        except OSError as error:
            # The error of a write to a full disk has no filename.
            error.filename = error.filename or os.fspath(path)
            raise


def write_text_atomic(path: PathLike, text: str) -> None:
    """Replace the content of `path` with text in UTF-8, without newline translation."""
    write_bytes_atomic(path, text.encode("utf-8"))


def write_json_atomic(path: PathLike, value: Any) -> None:
    """Replace the content of `path` with indented JSON and a trailing newline."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    write_text_atomic(path, text + "\n")


def append_json_line(path: PathLike, value: dict[str, Any], *, sync: bool = False) -> None:
    """Append `value` as one line, with null for NaN and infinities.

    First removes an incomplete last line left by a crash; a failed write is undone. With `sync` the
    line survives a power failure.
    """
    line = json.dumps(without_non_finite(value), ensure_ascii=False).encode("utf-8") + b"\n"
    file = disk.open_file(path, disk.TO_APPEND)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            tail = os.pread(file, _MAX_LINE_BYTES, max(0, size - _MAX_LINE_BYTES))
            torn = tail[tail.rfind(b"\n") + 1 :]
            if _parse_object(torn) is None:
                size -= len(torn)
                disk.truncate(file, size)
            else:
                line = b"\n" + line
        if not size:
            disk.sync(Path(path).parent)
        try:
            disk.write(file, line)
            if sync:
                disk.sync(file)
        except BaseException:
            disk.truncate(file, size)
            raise
    finally:
        os.close(file)


def read_json_lines(path: PathLike) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON lines file; an incomplete last line is dropped with a warning."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            value = _parse_object(line)
            if value is not None:
                yield value
            elif line.endswith(b"\n"):
                excerpt = line.strip()[:60].decode("utf-8", "replace")
                raise DataError(
                    f"{path} line {number} is not a JSON object: {excerpt!r}; fix or delete it"
                )
            else:
                _log.warning("%s: dropped the incomplete last line %d", path, number)


def parse_json(data: bytes | str) -> Any:
    """Parse JSON; raises ValueError if it is invalid, or nested too deep for recursion."""
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    level = [[value]]
    for _ in range(_MAX_DEPTH):
        inner = [one for outer in level for one in outer if isinstance(one, dict | list)]
        level = [list(one.values()) if isinstance(one, dict) else one for one in inner]
        if not level:
            return value
    raise ValueError("it is nested too deep")


def hash_file(path: PathLike) -> str:
    """Return the content id of a file: "sha256:" and 64 hexadecimal digits."""
    with open(path, "rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def hash_bytes(data: bytes | bytearray | memoryview) -> str:
    """Return the content id of bytes, equal to `hash_file` of a file with this content."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@contextlib.contextmanager
def locked(path: PathLike, *, wait: bool = False, shared: bool = False) -> Iterator[bool]:
    """Lock an existing file or folder inside the block, exclusively or shared. Yields False if
    another process has the lock; with `wait`, waits for it instead."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        try:
            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.flock(file, kind | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(file)


@contextlib.contextmanager
def _temporary_beside(destination: Path, file_name: str | None) -> Iterator[Path]:
    """Yield a new temporary file, or a folder if `file_name` is None, locked inside the block and
    removed if that raises. First removes leftovers of this file name, or for a folder all."""
    temporary = _hidden_sibling(destination, "writing")
    with contextlib.ExitStack() as stack:
        try:
            try:
                disk.make_folder(destination.parent)
                remove_leftovers(destination.parent, file_name)
                # Another process may remove it as a leftover before it is locked.
                while not temporary.exists():
                    disk.make_new(temporary, is_folder=file_name is None)
                    with contextlib.suppress(FileNotFoundError):
                        stack.enter_context(locked(temporary, wait=True))
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(destination)) from error
            yield temporary
        except BaseException:
            with contextlib.suppress(OSError):
                (disk.remove_tree if temporary.is_dir() else disk.remove)(temporary)
            raise
    disk.sync(destination.parent)


def _hidden_sibling(path: Path, role: str) -> Path:
    hidden = _HIDDEN.fullmatch(path.name)
    # Names are limited to 255 bytes, including the role and the random part.
    name = os.fsdecode(os.fsencode(hidden["name"] if hidden else path.name)[:200])
    return path.with_name(f".{name}.{role}-{secrets.token_hex(6)}")


def _parse_object(line: bytes) -> dict[str, Any] | None:
    try:
        value = parse_json(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


@contextlib.contextmanager
def open_plain_file(path: Path) -> Iterator[int | None]:
    """Yield a descriptor of a regular file for reading; None if there is none. Does not follow
    links, which could lead out of a folder that is served to others."""
    # Without O_NONBLOCK, opening a pipe would block forever.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        file = os.open(path, flags)
    except OSError:
        yield None
        return
    try:
        yield file if stat.S_ISREG(os.fstat(file).st_mode) else None
    finally:
        os.close(file)


def read_tail(path: Path, num_bytes: int) -> bytes:
    """Read the last bytes of a file; empty if it cannot be read."""
    with open_plain_file(path) as file:
        if file is None:
            return b""
        size = os.fstat(file).st_size
        return os.pread(file, num_bytes, max(0, size - num_bytes))


def file_signature(path: Path) -> tuple[int, int, int] | None:
    """Return inode, size and modification time, which change with the content."""
    try:
        found = os.lstat(path)
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def read_plain_file(path: Path, inside: Path | None = None, max_bytes: int = 1 << 28) -> bytes:
    """Read an untrusted file; raises OSError if `check_plain_file` rejects it."""
    check_plain_file(path, inside, max_bytes)
    return path.read_bytes()


def check_plain_file(path: Path, inside: Path | None = None, max_bytes: int = 1 << 62) -> None:
    """Raise OSError for a device or pipe, which may never end, for a larger file, and for a link
    that leads out of the folder `inside`."""
    found, root = path.stat(), (inside or Path("/")).resolve()
    # In huggingface_hub's cache, files are links to blobs next to the snapshots.
    root = root.parent.parent if root.parent.name == "snapshots" else root
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if found.st_size > max_bytes:
        reason = f"it has {found.st_size:,} bytes, more than {max_bytes:,}"
        raise OSError(errno.EINVAL, reason, str(path))
    if not path.resolve().is_relative_to(root):
        raise OSError(errno.EINVAL, f"it is a link that leads out of {inside}", str(path))
