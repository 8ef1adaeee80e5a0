"""What a request holds while its texts are written, and how tokens reach it from another thread.

The scheduler's thread fills an Outbox once a step; asyncio's thread finds the events in its Ticket.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from groundup.generation.request import GenerationRequest, NewToken


# Nobody reads faster; a step of a small model takes a tenth of it.
_PATIENCE_SECONDS = 0.01


class QueueFullError(Exception):
    """There is no place in the queue; one is likely to be free after `retry_seconds`."""

    def __init__(self, retry_seconds: float) -> None:
        super().__init__(f"the queue is full for about {retry_seconds:.1f} s")
        self.retry_seconds = retry_seconds


class NotTakingRequestsError(Exception):
    """The server is stopping, or its engine cannot be brought back to work."""


class EngineFailedError(Exception):
    """The engine broke while it worked on a request; the log has the cause."""


@dataclass(eq=False)
class Row:
    """One text to be written: the `index`-th of its ticket."""

    ticket: Ticket
    index: int
    request: GenerationRequest
    # All below belongs to the scheduler's thread, but for is_cancelled, which a client sets.
    handle: int | None = None
    num_new: int = 0
    is_cancelled: bool = False


class RowEvent(NamedTuple):
    """A new token of a row, or the error that ended it."""

    place: int
    token: NewToken | None = None
    error: Exception | None = None


@dataclass(eq=False)
class Ticket:
    """The rows of one request and what has happened to them. Belongs to one event loop."""

    client: str = ""
    rows: list[Row] = field(default_factory=list)
    submitted: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._events: list[RowEvent] = []
        self._waiter: asyncio.Future[None] | None = None

    async def next_events(self) -> list[RowEvent]:
        """Wait for something to happen; all that has happened since the last call."""
        if not self._events:
            self._waiter = self.loop.create_future()
            await self._waiter
        events, self._events = self._events, []
        return events

    def receive(self, events: Sequence[RowEvent]) -> None:
        self._events += events
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class Outbox:
    """The events of a step or of several quick ones, handed over by one call for each event loop.

    Waking a client's task and writing to its socket costs as much for one token as for many, so
    that tokens wait for each other a little; what begins or ends a text is urgent.
    """

    def __init__(self) -> None:
        self._events: dict[Ticket, list[RowEvent]] = {}
        self._is_urgent = False
        self._last_sent = 0.0

    def put(
        self,
        row: Row,
        token: NewToken | None = None,
        error: Exception | None = None,
        *,
        is_urgent: bool = True,
    ) -> None:
        event = RowEvent(row.index, token, error)
        events = self._events.get(row.ticket)
        if events is None:
            self._events[row.ticket] = [event]
        else:
            events.append(event)
        self._is_urgent |= is_urgent

    def send_if_due(self) -> None:
        """Hand over what is urgent or has waited for long enough."""
        if self._is_urgent or time.perf_counter() - self._last_sent >= _PATIENCE_SECONDS:
            self.send()

    def send(self) -> None:
        loops = {ticket.loop for ticket in self._events}
        for loop in loops:
            part = {ticket: e for ticket, e in self._events.items() if ticket.loop is loop}
            # A closed loop has nobody left who waits.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_hand_over, part)
        self._events = {}
        self._is_urgent = False
        self._last_sent = time.perf_counter()


def _hand_over(events: dict[Ticket, list[RowEvent]]) -> None:
    for ticket, items in events.items():
        ticket.receive(items)
