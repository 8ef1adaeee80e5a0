"""Which run folders a client may ask for, and how a run stands.

A name is looked up among the entries of the runs folder and never joined to a path as it came, so
no spelling of it leads elsewhere. Links are not followed.
"""

import json
import os
import re
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

from groundup.runs.folder import RunFolder
from groundup.runs.plain_files import file_signature
from groundup.runs.standing import judge

State = Literal["running", "stalled", "finished", "stopped", "failed"]

_PATIENCE_SECONDS = 60.0
_PATIENCE_BEFORE_FIRST_LINE_SECONDS = 300.0
_PATIENCE_GAPS = 5.0


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


def status_of(
    folder: RunFolder, step: int | None, num_steps: int | None, longest_gap_seconds: float | None
) -> Status:
    """How a run stands for a page: as `standing.judge` says, or stalled where it is silent.

    folder: the run.
    step: the step of its newest line of metrics, if there is one.
    num_steps: how many steps it is to take, if that is known.
    longest_gap_seconds: the longest that recent lines were apart. A run that has been silent for
        several of them is not expected to be training.
    """
    state, reason = judge(folder, step, num_steps)
    if state == "finished":
        return Status("finished", "All steps are done.")
    if state in ("failed", "diverged"):
        return Status("failed", (reason or "Its folder does not say why.")[:2_000])
    if state == "stopped":
        return Status("stopped", "Stopped and saved; continue it with --resume.")
    silent_seconds = max(0.0, time.time() - (last_change(folder) or 0.0))
    if silent_seconds <= _patience_seconds(step, longest_gap_seconds):
        return Status("running", "Training." if step else "Started; no metrics yet.")
    if state != "killed":
        return Status("stalled", "No new metrics for much longer than usual.")
    if step is None and file_signature(folder.log_file) is None:
        return Status("stopped", "The folder has no metrics.")
    return Status(
        "failed",
        "No process holds this run and its folder does not say how it ended: it was killed, "
        "or it trains on another machine.",
    )


def last_change(folder: RunFolder) -> float | None:
    """When the run last wrote something, in seconds of the clock; None if that is not known."""
    files = (folder.metrics_file, folder.log_file, folder.config_file, folder.environment_file)
    signatures = (file_signature(path) for path in files)
    return max((found[2] / 1e9 for found in signatures if found is not None), default=None)


def _patience_seconds(step: int | None, longest_gap_seconds: float | None) -> float:
    if step is None:
        return _PATIENCE_BEFORE_FIRST_LINE_SECONDS
    return max(_PATIENCE_SECONDS, _PATIENCE_GAPS * (longest_gap_seconds or 0.0))


def as_json(value: Any) -> bytes:
    """JSON that any client can read, whatever a file held: what is no finite number is null, dates
    are text."""
    text = json.dumps(value, default=str, skipkeys=True)
    is_plain = not re.search(r"NaN|Infinity|\d{309}", text)
    return (text if is_plain else json.dumps(json.loads(text, **_ODDITIES))).encode("ascii")


def _read_integer(digits: str) -> int | None:
    """None for what JavaScript takes for infinite."""
    return int(digits) if len(digits) < 309 else None


_ODDITIES: dict[str, Any] = {"parse_constant": lambda name: None, "parse_int": _read_integer}


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
