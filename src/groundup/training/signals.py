"""Graceful shutdown: on SIGINT or SIGTERM the current step finishes and the run is saved.

The first signal is only recorded. It also restores the previous handlers, so that a second one
stops the process at once.
"""

import logging
import signal
import threading
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_log = logging.getLogger(__name__)


class StopRequest:
    """While in use, knows whether and by which signal the process was asked to stop; `promise` is
    what the user is told will happen."""

    def __init__(self, promise: str = "saving after this step") -> None:
        self._promise = promise
        self.signal: signal.Signals | None = None
        self._old_handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        # Python lets only the main thread set handlers; in another one signals do what they did.
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._old_handlers[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._old_handlers.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number)
        self.__exit__()
        _log.warning("%s: %s; a second one quits now", self.signal.name, self._promise)
