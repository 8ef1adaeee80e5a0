"""How a run stands, judged from the lock on its folder, its outcome and its steps.

What else a page or a report says about it (silence, spikes, its rank in a sweep) is theirs.
"""

from typing import Literal, NamedTuple

from groundup.runs.folder import RunFolder, is_claimed

State = Literal["running", "finished", "stopped", "diverged", "failed", "killed", "unknown"]
"""running: a process of this machine holds the folder. finished, stopped, diverged and failed: as
training wrote down. killed: no process holds it and nothing tells how it ended; or it trains on
another machine. unknown: the same where the system does not list locks."""


class Standing(NamedTuple):
    """The state of a run, and the signal or error that ended it where one did."""

    state: State
    reason: str | None = None


def judge(folder: RunFolder, last_step: int | None, num_steps: int | None) -> Standing:
    """Whether the run in `folder` is running, and else how it ended.

    folder: the run.
    last_step: the step of its newest record, if it has one.
    num_steps: how many steps it is to take, if that is known. A run whose outcome could not be
        written is finished if they are all done.
    """
    is_held = is_claimed(folder.path)
    if is_held:
        return Standing("running")
    outcome = folder.read_outcome()
    if outcome is not None:
        return Standing(outcome.state, outcome.reason)
    if last_step is not None and num_steps is not None and last_step >= num_steps:
        return Standing("finished")
    return Standing("killed" if is_held is False else "unknown")
