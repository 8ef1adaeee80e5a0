"""Requests in the scheduler: a job is one request, a row is one of its sequences.

The engine thread puts new tokens into an Outbox, which delivers them to their jobs in the event
loop.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass, field

from groundup.generation.request import GenerationRequest, NewToken
from groundup.serving.api_errors import ApiError

# Tokens are delivered together at this interval; a step of a small model takes a tenth of it.
_FLUSH_SECONDS = 0.01


@dataclass(eq=False)
class Row:
    """Sequence number `index` of its job."""

    job: "Job"
    index: int
    request: GenerationRequest
    # The remaining fields are owned by the scheduler thread.
    handle: int | None = None
    num_new: int = 0


# A new token of a row, or the error that ended it.
Event = NewToken | ApiError


@dataclass(eq=False)
class Job:
    """The rows of one request and their events. Used only in the event loop."""

    client: str = ""
    rows: list[Row] = field(default_factory=list)
    submitted: float = field(default_factory=time.perf_counter)

    _events: list[tuple[int, Event]] = field(default_factory=list)
    _has_events: asyncio.Event = field(default_factory=asyncio.Event)

    async def next_events(self) -> list[tuple[int, Event]]:
        """Wait for events; return all since the last call, each with its row's index."""
        await self._has_events.wait()
        self._has_events.clear()
        events, self._events = self._events, []
        return events

    def receive(self, events: list[tuple[int, Event]]) -> None:
        self._events += events
        self._has_events.set()


class Outbox:
    """Delivers the events of one step, or of several fast ones, to the event loop in one call.

    Waking a client's task and writing to its socket costs the same for one token as for many, so
    tokens are batched briefly. The first and the last token of a sequence are urgent.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: dict[Job, list[tuple[int, Event]]] = {}
        self._is_urgent = False
        self._last_sent = 0.0

    def put(self, row: Row, event: Event, *, is_urgent: bool = True) -> None:
        self._events.setdefault(row.job, []).append((row.index, event))
        self._is_urgent |= is_urgent

    def send_if_due(self, is_last: bool = False) -> None:
        is_late = time.perf_counter() - self._last_sent >= _FLUSH_SECONDS
        if is_last or self._is_urgent or is_late:
            self.send()

    def send(self) -> None:
        events, self._events = self._events, {}

        def deliver() -> None:
            for job, items in events.items():
                job.receive(items)

        # A closed loop has no clients left.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(deliver)
        self._is_urgent = False
        self._last_sent = time.perf_counter()
