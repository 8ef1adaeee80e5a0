"""How a run ended, and how it stands. A run that trains has no outcome.json yet, and one that was
killed never gets one."""

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import pydantic
from pydantic.dataclasses import dataclass

from groundup.files import write_json_atomic

if TYPE_CHECKING:
    from groundup.runs.folder import RunFolder

State = Literal["finished", "stopped", "diverged", "failed"]


@dataclass(frozen=True)
class Outcome:
    """The end of a run, of all its resumes together."""

    state: State
    step: int | None = None
    """How far it came."""
    reason: str | None = None
    """The signal that stopped it, or the error that ended it."""
    cost: Mapping[str, int | float] = field(default_factory=dict)
    """wall_seconds and tokens."""

    def write(self, path: Path) -> None:
        """A full disk only means that no outcome is written: the run itself is saved by now."""
        with contextlib.suppress(OSError):
            write_json_atomic(path, asdict(self))


_FILE = pydantic.TypeAdapter(Outcome)


class Standing(NamedTuple):
    """Whether a run trains, and else how it ended, with the signal or error that ended it.

    running: a process of this machine holds the folder. killed: none does, and nothing tells how it
    ended; or it trains on another machine. unknown: the folder cannot be locked.
    """

    state: Literal["running", "killed", "unknown"] | State
    reason: str | None = None


def judge(folder: "RunFolder", last_step: int | None, num_steps: int | None) -> Standing:
    """How the run in `folder` stands, by its lock, its outcome and the step of its newest record.

    A run whose outcome could not be written is finished if all `num_steps` are done.
    """
    is_held = folder.is_claimed()
    if is_held:
        return Standing("running")
    outcome = folder.read_outcome()
    if outcome is not None:
        return Standing(outcome.state, outcome.reason)
    if last_step is not None and num_steps is not None and last_step >= num_steps:
        return Standing("finished")
    return Standing("killed" if is_held is False else "unknown")


def parse_outcome(data: bytes) -> Outcome | None:
    """What outcome.json says; None where it is not one."""
    try:
        return _FILE.validate_json(data)
    except pydantic.ValidationError:
        return None
