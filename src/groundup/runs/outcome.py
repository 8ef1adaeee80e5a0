"""How a run ended. One that trains has no outcome.json yet; one that was killed never gets one."""

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Literal

from pydantic.dataclasses import dataclass

from groundup.files import write_json_atomic

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
