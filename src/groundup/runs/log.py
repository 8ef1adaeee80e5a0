"""log.txt of a run: written while it trains, and its last word read by whoever looks at the run."""

import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

_FORMAT = "%(asctime)s %(levelname)s %(message)s"
_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (?P<level>[A-Z]+) (?P<text>.*)")

TAIL_BYTES = 16_384
"""How much of the end of a log surely holds its last word."""


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


def last_entry(tail: bytes) -> tuple[str, str]:
    """Level and first line of what was logged last, from the end of a log; empty if nothing was."""
    for line in reversed(tail.decode("utf-8", "replace").splitlines()):
        if found := _LINE.fullmatch(line):
            return found["level"], found["text"]
    return "", ""


class _QuietFileHandler(logging.FileHandler):
    """A log line that cannot be written (disk full) is no reason to disturb the training."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass
