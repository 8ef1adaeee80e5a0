"""Which run folders a client may ask for, and what is found in them as JSON.

A name is looked up among the entries of the runs folder and never joined to a path as it came, so
no spelling of it leads elsewhere. Links are not followed.
"""

import json
import math
import os
from pathlib import Path
from typing import Any

from groundup.runs.folder import RunFolder


def find_runs(runs_folder: Path) -> list[RunFolder]:
    """Every run folder directly below `runs_folder`, by name."""
    try:
        with os.scandir(runs_folder) as entries:
            names = sorted(entry.name for entry in entries if _is_own_folder(entry))
    except OSError:
        return []
    plain = (runs_folder / name for name in names if _is_plain(name))
    folders = (RunFolder(path, follow_links=False) for path in plain)
    return [folder for folder in folders if folder.is_begun()]


def find_run(runs_folder: Path, name: str) -> RunFolder | None:
    """The run folder of exactly that name, or None."""
    for folder in find_runs(runs_folder):
        if folder.path.name == name:
            return folder
    return None


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
