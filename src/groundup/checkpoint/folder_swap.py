"""Folders that are either whole or absent, as `files` promises it for files.

A folder is filled under a hidden name beside its own, synced and renamed; one that goes is
renamed first and deleted then. Hidden names say what they are, so that whatever a kill leaves is
put right later. What lies in the folders is left to others.
"""

import contextlib
import fcntl
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from groundup.files import sync_to_disk

_Role = Literal["writing", "replaced", "discarded"]

_HIDDEN_NAME = re.compile(r"\.(?P<name>.+)\.(?P<role>writing|replaced|discarded)-[0-9a-f]{12}")

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def atomic_folder(destination: Path) -> Iterator[Path]:
    """Yield a new folder beside `destination`; it becomes `destination` if the block succeeds.

    If the block raises, the new folder is removed and `destination` is as it was. The files in it
    must have been synced.
    """
    temporary, lock = _create_locked(destination)
    try:
        yield temporary
        sync_to_disk(temporary)
        _put_in_place(temporary, destination)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        os.close(lock)
    sync_to_disk(destination.parent)


def discard_folder(path: Path) -> None:
    """Delete a folder; at no moment is a half of it under its own name."""
    doomed = _hidden_path(path, "discarded")
    os.rename(path, doomed)
    _delete(doomed)


def find_folder(destination: Path) -> Path | None:
    """Where the folder is: at its path, or aside if a kill came while it was being replaced."""
    if destination.is_dir():
        return destination
    for path, name, role in _hidden_folders(_list_folders(destination.parent)):
        if role == "replaced" and name == destination.name:
            return path
    # A living writer may have finished the exchange since the first look.
    return destination if destination.is_dir() else None


def find_names(parent: Path) -> set[str]:
    """The names of all folders that `find_folder` finds in `parent`."""
    folders = _list_folders(parent)
    hidden = list(_hidden_folders(folders))
    plain = {path.name for path in folders} - {path.name for path, _, _ in hidden}
    return plain | {name for _, name, role in hidden if role == "replaced"}


def remove_leftovers(parent: Path) -> None:
    """Put right what killed writers left in `parent`; what living ones work on stays."""
    for path, name, role in _hidden_folders(_list_folders(parent)):
        try:
            lock = _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, FileNotFoundError):
            continue
        except OSError as error:
            _log.warning("%s is left over but cannot be opened: %s", path, error.strerror)
            continue
        try:
            if role == "replaced" and not (parent / name).exists():
                os.rename(path, parent / name)
            elif role == "replaced":
                discard_folder(path)
            else:
                _delete(path)
        except OSError as error:
            _log.warning("%s is left over but cannot be removed: %s", path, error.strerror)
        finally:
            os.close(lock)


def _create_locked(destination: Path) -> tuple[Path, int]:
    while True:
        temporary = _hidden_path(destination, "writing")
        os.mkdir(temporary)
        try:
            lock = _lock(temporary, fcntl.LOCK_EX)
        except FileNotFoundError:
            continue
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        # Between the making and the lock a cleaner may have taken the folder for a stale one.
        if os.path.isdir(temporary):
            return temporary, lock
        os.close(lock)


def _put_in_place(temporary: Path, destination: Path) -> None:
    if not destination.exists():
        os.rename(temporary, destination)
        return
    # A folder cannot be renamed over a full one, so the old one steps aside; while it is the only
    # one, `find_folder` finds it there.
    aside = _hidden_path(destination, "replaced")
    lock = _lock(destination, fcntl.LOCK_EX)
    try:
        os.rename(destination, aside)
        try:
            os.rename(temporary, destination)
        except BaseException:
            if not destination.exists():
                os.rename(aside, destination)
            raise
        sync_to_disk(destination.parent)
        try:
            discard_folder(aside)
        except OSError as error:
            _log.warning("%s was replaced but cannot be removed: %s", aside, error.strerror)
    finally:
        os.close(lock)


def _delete(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def _hidden_path(path: Path, role: _Role) -> Path:
    hidden = _HIDDEN_NAME.fullmatch(path.name)
    name = hidden["name"] if hidden else path.name
    return path.with_name(f".{name}.{role}-{secrets.token_hex(6)}")


def _list_folders(parent: Path) -> list[Path]:
    """One look, so that a rename meanwhile does not hide a folder under both of its names."""
    try:
        return sorted(path for path in parent.iterdir() if path.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _hidden_folders(folders: list[Path]) -> Iterator[tuple[Path, str, str]]:
    """Path, name of the folder it stands for, and role of every hidden folder of ours."""
    for path in folders:
        if hidden := _HIDDEN_NAME.fullmatch(path.name):
            yield path, hidden["name"], hidden["role"]


def _lock(path: Path, operation: int) -> int:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, operation)
    except BaseException:
        os.close(file)
        raise
    return file
