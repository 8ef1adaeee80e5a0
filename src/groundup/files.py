"""Files and folders that are either whole or absent: atomic writes, JSON lines, hashes, locks.

A file or folder is written beside its destination, synced and renamed to it, so a kill at any
instant leaves the old content or the new, never half of one.
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
# No file of ours comes near it, and Python's own limit is far enough from it.
_MAX_DEPTH = 100
_MAX_LINE_BYTES = 1 << 20

_log = logging.getLogger(__name__)

without_non_finite = functools.partial(to_jsonable_python, inf_nan_mode="null")
"""A value with null for NaN and infinities, which JSON lacks."""


@contextlib.contextmanager
def atomic_path(path: PathLike) -> Iterator[Path]:
    """Yield a temporary sibling of `path` to write to; it becomes `path` if the block succeeds.

    Missing parent folders are made. If the block raises, the temporary is removed and `path` is
    as it was. A link is followed; a device or pipe is written to as it stands.
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
    """Yield a new folder beside `destination`; it becomes `destination` if the block succeeds.

    Its files are synced first. If the block raises, the new folder is removed and `destination` is
    as it was.
    """
    with _temporary_beside(destination, None) as temporary:
        yield temporary
        for path, _, names in os.walk(temporary, topdown=False):
            for name in (*names, "."):
                disk.sync(Path(path, name))
        if not destination.exists():
            disk.rename(temporary, destination)
            return
        # A folder cannot be renamed over a full one: the old one steps aside, where `find_folders`
        # finds it while it is the only one.
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
    """Delete a folder for good; at no moment is half of it under its own name."""
    doomed = _hidden_sibling(path, "discarded")
    disk.rename(path, doomed)
    disk.sync(path.parent)
    disk.remove_tree(doomed)
    # A finished run is not opened again: what came back there would stay.
    disk.sync(path.parent)


def find_folders(parent: Path) -> dict[str, Path]:
    """The folders in `parent` by name; one that a kill left aside while it was being replaced is
    where it was put."""
    try:
        folders = [path for path in parent.iterdir() if path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return {}
    hidden = {path: _HIDDEN.fullmatch(path.name) for path in folders}
    aside = {it["name"]: path for path, it in hidden.items() if it and it["role"] == "replaced"}
    return aside | {path.name: path for path, match in hidden.items() if match is None}


def is_leftover(name: str) -> bool:
    """Is this what a killed writer leaves?"""
    return _HIDDEN.fullmatch(name) is not None


def remove_leftovers(parent: Path, name: str | None = None) -> None:
    """Remove or put back what killed writers left in `parent`, of one destination or of all. A
    running writer holds a lock on what it writes."""
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


def write_bytes_atomic(path: PathLike, data: bytes) -> None:
    """Replace the content of `path` by `data`."""
    with atomic_path(path) as temporary:
        try:
            disk.write_file(temporary, data)
        except OSError as error:
            # A write that finds the disk full knows no name.
            error.filename = error.filename or os.fspath(path)
            raise


def write_text_atomic(path: PathLike, text: str) -> None:
    """The same for text in UTF-8, line ends as given."""
    write_bytes_atomic(path, text.encode("utf-8"))


def write_json_atomic(path: PathLike, value: Any) -> None:
    """Replace the content of `path` by `value` as indented JSON with a last line end."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    write_text_atomic(path, text + "\n")


def append_json_line(path: PathLike, value: dict[str, Any], *, sync: bool = False) -> None:
    """Add `value` as one line; NaN and infinities, which JSON lacks, become null.

    A torn last line left by a kill is cut off first, and a write that fails leaves no tear. With
    `sync` the line outlasts a loss of power.
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
    """Yield the objects of a JSON-lines file; a torn last line is dropped and logged."""
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
                _log.warning("%s: dropped the unfinished last line %d", path, number)


def parse_json(data: bytes | str) -> Any:
    """The value of a JSON text; also a ValueError where it is nested too deep to be walked."""
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
    """The content id of a file: "sha256:" and 64 hexadecimal digits."""
    with open(path, "rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def hash_bytes(data: bytes | bytearray | memoryview) -> str:
    """The content id of bytes, as `hash_file` gives it for a file that holds them."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@contextlib.contextmanager
def locked(path: PathLike, *, wait: bool = False, shared: bool = False) -> Iterator[bool]:
    """Hold the lock of an existing file or folder within the block, alone or with others that
    share it; False if another process has it (with `wait`, wait for it)."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
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
    """A new sibling, locked while it is written; removed if the block raises. It is a file of that
    name, whose leftovers are removed before, or a folder, and then all leftovers are."""
    temporary = _hidden_sibling(destination, "writing")
    with contextlib.ExitStack() as stack:
        try:
            try:
                disk.make_folder(destination.parent)
                remove_leftovers(destination.parent, file_name)
                # Another process may take it for a leftover before it is locked.
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
    # Names may be 255 bytes long; the role and the random part need room.
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
    """A descriptor of a regular file to read from; None if no such file exists. Links are not
    followed: they could lead out of a folder that is shown to others."""
    # Without O_NONBLOCK a pipe of that name would block the reader forever.
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


def read_plain_file(path: Path, inside: Path | None = None, max_bytes: int = 1 << 28) -> bytes:
    """The content of a foreign file; an OSError for what `check_plain_file` refuses."""
    check_plain_file(path, inside, max_bytes)
    return path.read_bytes()


def check_plain_file(path: Path, inside: Path | None = None, max_bytes: int = 1 << 62) -> None:
    """Raise an OSError for a device or a pipe, which may never end, for what is larger, and for a
    link that leads out of the folder `inside`."""
    found, root = path.stat(), (inside or Path("/")).resolve()
    # In the cache of huggingface_hub files are links to blobs beside the snapshots.
    root = root.parent.parent if root.parent.name == "snapshots" else root
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    if found.st_size > max_bytes:
        reason = f"it has {found.st_size:,} bytes, more than {max_bytes:,}"
        raise OSError(errno.EINVAL, reason, str(path))
    if not path.resolve().is_relative_to(root):
        raise OSError(errno.EINVAL, f"it is a link that leads out of {inside}", str(path))
