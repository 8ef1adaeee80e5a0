"""Whether a run trains, hangs, has ended, and how: told from its files and the lock on its folder.

A trainer holds a lock on its run folder while it lives.
"""

import time
from dataclasses import dataclass
from typing import Literal

from groundup.runs.folder import RunFolder, is_claimed
from groundup.runs.plain_files import file_signature

State = Literal["running", "stalled", "finished", "stopped", "failed"]

_PATIENCE_SECONDS = 60.0
_PATIENCE_BEFORE_FIRST_LINE_SECONDS = 300.0
_PATIENCE_GAPS = 5.0


@dataclass(frozen=True)
class Status:
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
        return Status("running", "It trains." if step else "It has begun; no figures yet.")
    if is_held is False:
        if step is None and file_signature(folder.log_file) is None:
            return Status("stopped", "The folder has no training figures.")
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
