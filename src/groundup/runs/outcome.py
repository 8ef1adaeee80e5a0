"""How a run ended, as training writes it into outcome.json.

A run that trains has none yet, and one that was killed never gets one. Runs from before the file
existed are told by the last line of their log, here and nowhere else.
"""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, get_args

from groundup.files import parse_json, write_json_atomic
from groundup.runs.log import last_entry

State = Literal["finished", "stopped", "diverged", "failed"]


@dataclass(frozen=True)
class Outcome:
    """The end of a run, of all its resumes together."""

    state: State
    step: int | None = None
    """How far it came."""
    reason: str | None = None
    """The signal that stopped it, or the error that ended it."""
    cost: Mapping[str, float] = field(default_factory=dict)
    """wall_seconds and tokens."""

    def write(self, path: Path) -> None:
        """A full disk only means that there is no outcome: the run itself is saved by now."""
        with contextlib.suppress(OSError):
            write_json_atomic(path, asdict(self))


def parse_outcome(data: bytes) -> Outcome | None:
    """What outcome.json says; None where it says nothing of use."""
    try:
        value = parse_json(data)
    except ValueError:
        return None
    if not isinstance(value, dict) or value.get("state") not in get_args(State):
        return None
    step, reason, cost = (value.get(name) for name in ("step", "reason", "cost"))
    return Outcome(
        state=value["state"],
        step=step if type(step) is int else None,
        reason=reason if isinstance(reason, str) else None,
        cost={
            name: number
            for name, number in (cost.items() if isinstance(cost, dict) else ())
            if type(number) in (int, float) and 0 <= number < math.inf
        },
    )


def outcome_of_log(tail: bytes) -> Outcome | None:
    """The same from the end of log.txt, for runs without outcome.json."""
    level, text = last_entry(tail)
    if level == "ERROR":
        return Outcome("diverged" if "no finite loss" in text else "failed", reason=text)
    return Outcome("stopped") if text.startswith("stopped after step") else None
