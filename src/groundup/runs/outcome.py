"""How a run ended, and how it stands: log.txt and outcome.json, written while it trains.

A run that trains has no outcome yet, and one that was killed never gets one.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from groundup.files import parse_json, write_json_atomic

if TYPE_CHECKING:
    from groundup.runs.folder import RunFolder

State = Literal["finished", "stopped", "diverged", "failed"]

_FORMAT = "%(asctime)s %(levelname)s %(message)s"


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
        """A full disk only means that no outcome is written: the run itself is saved by now."""
        with contextlib.suppress(OSError):
            write_json_atomic(path, asdict(self))


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


@contextlib.contextmanager
def log_to_file(path: Path) -> Iterator[Callable[[str], None]]:
    """Add what groundup logs meanwhile to the file; gives what adds an error to the file alone."""
    logger = logging.getLogger("groundup")
    handler = _QuietFileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter(_FORMAT))
    level = logger.level
    logger.addHandler(handler)
    if logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)

    def add_error(text: str) -> None:
        handler.handle(logger.makeRecord(logger.name, logging.ERROR, "", 0, text, (), None))

    try:
        yield add_error
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
        handler.close()


class _QuietFileHandler(logging.FileHandler):
    """A log line that cannot be written (disk full) must not disturb the training."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass
