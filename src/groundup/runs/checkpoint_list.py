"""The checkpoints of a run as a page lists them, without torch and without opening weights."""

import json
import os
import re
from pathlib import Path
from typing import Any

from groundup.runs.metrics import is_number
from groundup.runs.plain_files import read_tail

_STEP_NAME = re.compile(r"step_(\d{6,})", re.ASCII)
_MAX_LISTED = 500


def list_checkpoints(folder: Path) -> list[dict[str, Any]]:
    """Step, size, time and validation loss of every checkpoint in `folder`, newest first.

    `is_best` marks the one with the least validation loss, the later of equals. Folders that vanish
    meanwhile, as old checkpoints do, are left out.
    """
    try:
        found = [match for name in os.listdir(folder) if (match := _STEP_NAME.fullmatch(name))]
    except OSError:
        return []
    steps = sorted(found, key=lambda match: int(match[1]), reverse=True)[:_MAX_LISTED]
    entries = [entry for match in steps if (entry := _describe(folder / match[0], int(match[1])))]
    measured = [entry for entry in entries if entry["validation_loss"] is not None]
    if measured:
        min(measured, key=lambda entry: float(entry["validation_loss"]))["is_best"] = True
    return entries


def _describe(path: Path, step: int) -> dict[str, Any] | None:
    try:
        with os.scandir(path) as files:
            num_bytes = sum(file.stat(follow_symlinks=False).st_size for file in files)
        written = os.stat(path).st_mtime
    except OSError:
        return None
    return {
        "step": step,
        "num_bytes": num_bytes,
        "written": written,
        "validation_loss": _read_metric(path / "state.json"),
        "is_best": False,
    }


def _read_metric(path: Path) -> float | None:
    try:
        metric = json.loads(read_tail(path, 2**20, follow_links=False)).get("metric")
        return float(metric) if is_number(metric) else None
    except (ValueError, OverflowError, RecursionError, AttributeError):
        return None
