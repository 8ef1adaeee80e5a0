"""What waits and runs in the scheduler: a job is one request, a row is one sequence or one call.

Rows wait in a FairQueue. The engine's thread puts new tokens into an Outbox, which hands them to
their jobs in the event loop.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from groundup.serving.api_errors import ApiError

if TYPE_CHECKING:
    from groundup.generation.request import GenerationRequest, NewToken

# A client's tokens wait for each other for so long; a step of a small model takes a tenth of it.
_PATIENCE_SECONDS = 0.01


@dataclass(eq=False)
class Row:
    """Sequence or call number `index` of its job."""

    job: Job
    index: int
    work: GenerationRequest | Callable[[], Any]
    # The rest belongs to the scheduler's thread, except is_cancelled, which a client sets.
    handle: int | None = None
    num_new: int = 0
    is_cancelled: bool = False


class Event(NamedTuple):
    """A new token of a row, the result of its call, or the error that ended it."""

    number: int
    token: NewToken | None = None
    result: Any = None
    error: ApiError | None = None


@dataclass(eq=False)
class Job:
    """The rows of one request and what has happened to them. Belongs to the event loop."""

    client: str = ""
    rows: list[Row] = field(default_factory=list)
    submitted: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self._events: list[Event] = []
        self._has_events = asyncio.Event()

    async def next_events(self) -> list[Event]:
        """Wait for something to happen; all that has happened since the last call."""
        await self._has_events.wait()
        self._has_events.clear()
        events, self._events = self._events, []
        return events

    def receive(self, events: list[Event]) -> None:
        self._events += events
        self._has_events.set()


class Outbox:
    """Hands the events of a step, or of several quick ones, to the event loop in one call.

    Waking a client's task and writing to its socket costs as much for one token as for many, so
    tokens wait for each other a little; what begins or ends a sequence is urgent.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: dict[Job, list[Event]] = {}
        self._is_urgent = False
        self._last_sent = 0.0

    def put(self, row: Row, event: Event, *, is_urgent: bool = True) -> None:
        self._events.setdefault(row.job, []).append(event)
        self._is_urgent |= is_urgent

    def send_if_due(self) -> None:
        if self._is_urgent or time.perf_counter() - self._last_sent >= _PATIENCE_SECONDS:
            self.send()

    def send(self) -> None:
        if self._events:
            # Nobody waits on a closed loop.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._hand_over, self._events)
        self._events = {}
        self._is_urgent = False
        self._last_sent = time.perf_counter()

    @staticmethod
    def _hand_over(events: dict[Job, list[Event]]) -> None:
        for job, items in events.items():
            job.receive(items)


class FairQueue:
    """Rows of many clients, who take turns; those of one client leave in the order they came."""

    def __init__(self) -> None:
        # The client whose turn is longest ago comes first.
        self._rows: dict[str, collections.deque[Row]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def __iter__(self) -> Iterator[Row]:
        for rows in self._rows.values():
            yield from rows

    def count(self, client: str) -> int:
        return len(self._rows.get(client, ()))

    def push(self, row: Row) -> None:
        self._rows.setdefault(row.job.client, collections.deque()).append(row)

    def heads(self) -> Iterator[Row]:
        """The first row of each client, in the order of their turns."""
        return (rows[0] for rows in self._rows.values())

    def pop(self, row: Row) -> None:
        """Take out a client's first row; its next turn comes after those of all who wait now."""
        rows = self._rows.pop(row.job.client)
        rows.popleft()
        if rows:
            self._rows[row.job.client] = rows

    def remove(self, row: Row) -> bool:
        """Take out a row wherever it is; whether it was there."""
        rows = self._rows.get(row.job.client)
        if rows is None or row not in rows:
            return False
        rows.remove(row)
        if not rows:
            del self._rows[row.job.client]
        return True

    def clear(self) -> None:
        self._rows.clear()
