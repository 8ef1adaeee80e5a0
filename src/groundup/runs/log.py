"""log.txt of a run: written while it trains, and its last word read by whoever looks at the run."""

import contextlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FORMAT = "%(asctime)s %(levelname)s %(message)s"
_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (?P<level>[A-Z]+) (?P<text>.*)")

TAIL_BYTES = 16_384
"""How much of the end of a log surely holds its last word."""


@dataclass(frozen=True)
class LogEntry:
    """The first line of what was logged at once."""

    level: str
    text: str


@dataclass
class RunLog:
    """What is to be written into a log that is open."""

    takes_errors: bool = True
    """Whether an error that ends the block is the run's, and no refusal that leaves it alone."""


@contextlib.contextmanager
def log_to_file(path: Path) -> Iterator[RunLog]:
    """Add what groundup logs meanwhile to the file, and the error that ends it if one does."""
    log = RunLog()
    logger = logging.getLogger("groundup")
    handler = _QuietFileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter(_FORMAT))
    level = logger.level
    logger.addHandler(handler)
    if logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)
    try:
        yield log
    except Exception as error:
        if log.takes_errors:
            # To the file alone: the console hears of it from whoever catches it.
            text = f"{type(error).__name__}: {error}"
            handler.handle(logger.makeRecord(logger.name, logging.ERROR, "", 0, text, (), None))
        raise
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
        handler.close()


def last_entry(tail: bytes) -> LogEntry | None:
    """The last entry in the end of a log; None if there is none."""
    for line in reversed(tail.decode("utf-8", "replace").splitlines()):
        if found := _LINE.fullmatch(line):
            return LogEntry(found["level"], found["text"])
    return None


class _QuietFileHandler(logging.FileHandler):
    """A log line that cannot be written (disk full) is no reason to disturb the training."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass
