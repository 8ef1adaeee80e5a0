"""How a run ended: outcome.json. Runs that are still training or were killed do not have one."""

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
    """The end of a run; the cost includes all its resumes."""

    state: State
    step: int | None = None
    """The last step."""
    reason: str | None = None
    """The signal or error that ended the run."""
    cost: Mapping[str, int | float] = field(default_factory=dict)
    """wall_seconds and tokens."""

    def write(self, path: Path) -> None:
        """Write to a file, unless the disk is full; the run itself is already saved."""
        with contextlib.suppress(OSError):
            write_json_atomic(path, asdict(self))
