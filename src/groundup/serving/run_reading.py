"""Reading run folders that others write to, and that anyone may have put anything into.

A name is looked up among the entries of the runs folder and never joined to a path as it came, so
no spelling of it leads elsewhere. Links are not followed, and whatever cannot be read is absent.
"""

import contextlib
import json
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from groundup.config import flatten, load_yaml
from groundup.errors import ConfigError
from groundup.runs.folder import RunFolder

# YAML is read slowly, so that a large file of it would hold an answer up.
_MAX_YAML_BYTES = 2**16
_MAX_YAML_DEPTH = 20
_MAX_JSON_BYTES = 2**20


def find_runs(runs_folder: Path) -> list[RunFolder]:
    """Every run folder directly below `runs_folder`, by name."""
    try:
        with os.scandir(runs_folder) as entries:
            names = sorted(entry.name for entry in entries if _is_own_folder(entry))
    except OSError:
        return []
    folders = (RunFolder(runs_folder / name) for name in names if _is_plain(name))
    return [folder for folder in folders if _has_traces(folder)]


def find_run(runs_folder: Path, name: str) -> RunFolder | None:
    """The run folder of exactly that name, or None."""
    for folder in find_runs(runs_folder):
        if folder.path.name == name:
            return folder
    return None


@contextlib.contextmanager
def open_plain_file(path: Path) -> Iterator[int | None]:
    """A descriptor of a regular file to read from; None if there is no such file."""
    file = None
    with contextlib.suppress(OSError):
        # Without O_NONBLOCK a pipe of that name would hold the reader for ever.
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
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


def read_settings(folder: RunFolder) -> dict[str, Any]:
    """config.yaml by flat dotted names; nothing while it is missing or damaged."""
    try:
        if not _is_small(folder.config_file, _MAX_YAML_BYTES) or _is_knotty(folder.config_file):
            return {}
        return dict(flatten(load_yaml(folder.config_file)))
    except (ConfigError, OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}


def read_environment(folder: RunFolder) -> dict[str, Any]:
    """environment.json; nothing while it is missing or damaged."""
    is_small = _is_small(folder.environment_file, _MAX_JSON_BYTES)
    return folder.read_environment() if is_small else {}


def as_json(value: Any) -> bytes:
    """JSON that any client can read, whatever a file held: what is no number to JavaScript is
    null, dates are text."""
    return json.dumps(_without_oddities(value), allow_nan=False).encode("ascii")


def _is_own_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _is_plain(name: str) -> bool:
    """Can the name be told to a client at all? Names on disk need not be text."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _has_traces(folder: RunFolder) -> bool:
    return any(file_signature(path) for path in folder.traces)


def _is_small(path: Path, max_bytes: int) -> bool:
    with open_plain_file(path) as file:
        return file is not None and os.fstat(file).st_size <= max_bytes


def _is_knotty(path: Path) -> bool:
    """Would the file unfold into something huge, or take for ever? Training writes none such."""
    depth = 0
    for event in yaml.parse(path.read_text("utf-8"), Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > _MAX_YAML_DEPTH:
            return True
    return False


def _without_oddities(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return value if value.bit_length() < 1024 else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _without_oddities(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_without_oddities(item) for item in value]
    return str(value)
