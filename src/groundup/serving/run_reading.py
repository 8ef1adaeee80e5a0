"""Which run folders a client may ask for, how a run stands, and what checkpoints it has.

A name is looked up among the entries of the runs folder and never joined to a path as it came, so
no spelling of it leads elsewhere. Links are not followed.
"""

import contextlib
import json
import math
import os
import time
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from groundup.checkpoint import CheckpointFolder
from groundup.checkpoint.record import read_record
from groundup.errors import CheckpointError
from groundup.runs.folder import RunFolder, is_claimed
from groundup.runs.plain_files import file_signature

State = Literal["running", "stalled", "finished", "stopped", "failed"]

_PATIENCE_SECONDS = 60.0
_PATIENCE_BEFORE_FIRST_LINE_SECONDS = 300.0
_PATIENCE_GAPS = 5.0
_MAX_CHECKPOINTS = 500


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


class Status(NamedTuple):
    """How a run stands, in a word and in a sentence."""

    state: State
    message: str


def judge(
    folder: RunFolder, step: int | None, num_steps: int | None, longest_gap_seconds: float | None
) -> Status:
    """The state of a run whose newest line is of `step`.

    The gap is the longest that recent lines were apart: a run that has been silent for several of
    them is no longer expected to be at work.
    """
    if step is not None and num_steps is not None and step >= num_steps:
        return Status("finished", f"All {num_steps:,} steps are done.")
    is_held = is_claimed(folder.path)
    outcome = None if is_held else folder.read_outcome()
    if outcome is not None and outcome.state in ("failed", "diverged"):
        return Status("failed", (outcome.reason or "Its folder does not say why.")[:2_000])
    if outcome is not None and outcome.state == "finished":
        return Status("finished", "All its steps are done.")
    if outcome is not None:
        return Status("stopped", "It was stopped and saved, and can go on with --resume.")
    silent_seconds = max(0.0, time.time() - (last_change(folder) or 0.0))
    is_silent = silent_seconds > _patience_seconds(step, longest_gap_seconds)
    if not is_silent:
        return Status("running", "It trains." if step else "It has begun; no metrics yet.")
    if is_held is False:
        if step is None and file_signature(folder.log_file) is None:
            return Status("stopped", "The folder has no metrics.")
        return Status(
            "failed",
            "No process holds this run and its folder does not say how it ended: it was killed, "
            "or it trains on another machine.",
        )
    return Status("stalled", "It has said nothing for much longer than it usually takes.")


def last_change(folder: RunFolder) -> float | None:
    """When the run last wrote something, in seconds of the clock; None if that is not known."""
    files = (folder.metrics_file, folder.log_file, folder.config_file, folder.environment_file)
    signatures = (file_signature(path) for path in files)
    return max((found[2] / 1e9 for found in signatures if found is not None), default=None)


def _patience_seconds(step: int | None, longest_gap_seconds: float | None) -> float:
    if step is None:
        return _PATIENCE_BEFORE_FIRST_LINE_SECONDS
    return max(_PATIENCE_SECONDS, _PATIENCE_GAPS * (longest_gap_seconds or 0.0))


def list_checkpoints(path: Path) -> list[dict[str, Any]]:
    """Step, size, time and validation loss of every checkpoint, newest first; `is_best` marks one.

    Folders that vanish meanwhile, as old checkpoints do, are left out.
    """
    folder = CheckpointFolder(path)
    entries = []
    try:
        steps = folder.steps()[-_MAX_CHECKPOINTS:]
    except OSError:
        return []
    for step in reversed(steps):
        with contextlib.suppress(OSError):
            entries.append(_describe_checkpoint(folder.path_of(step), step))
    measured = [entry for entry in entries if entry["validation_loss"] is not None]
    if measured:
        min(measured, key=lambda entry: float(entry["validation_loss"]))["is_best"] = True
    return entries


def _describe_checkpoint(path: Path, step: int) -> dict[str, Any]:
    with os.scandir(path) as files:
        num_bytes = sum(file.stat(follow_symlinks=False).st_size for file in files)
    return {
        "step": step,
        "num_bytes": num_bytes,
        "written": os.stat(path).st_mtime,
        "validation_loss": _read_metric(path, step, os.stat(path).st_mtime_ns),
        "is_best": False,
    }


@lru_cache(maxsize=4 * _MAX_CHECKPOINTS)
def _read_metric(path: Path, step: int, modified: int) -> float | None:
    try:
        return read_record(path, step).metric
    except CheckpointError:
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
