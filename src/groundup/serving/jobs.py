"""What waits and runs in the scheduler: a job is the rows of one request, a row is one sequence.

Rows wait in a FairQueue. The engine's thread puts new tokens into an Outbox, which hands them to
their jobs in the event loop.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from groundup.serving.api_errors import ApiError

if TYPE_CHECKING:
    from groundup.generation.request import GenerationRequest, NewToken

Item = TypeVar("Item")

# Nobody reads faster; a step of a small model takes a tenth of it.
_PATIENCE_SECONDS = 0.01
_LONGEST_RETRY_SECONDS = 60


class QueueFullError(ApiError):
    """The queue is full; there is likely to be space after `retry_seconds`."""

    def __init__(self, retry_seconds: float) -> None:
        self.retry_seconds = retry_seconds
        seconds = min(max(1, math.ceil(retry_seconds)), _LONGEST_RETRY_SECONDS)
        super().__init__(
            429,
            f"too many requests are waiting: try again in about {seconds} s",
            code="queue_full",
            headers={"Retry-After": str(seconds)},
        )


class NotTakingRequestsError(ApiError):
    """The server is stopping, or its engine cannot be brought back to work."""

    def __init__(self, message: str) -> None:
        super().__init__(503, message, code="unavailable", headers={"Retry-After": "5"})


@dataclass(eq=False)
class Row:
    """One sequence to be generated: the `index`-th of its job."""

    job: Job
    index: int
    request: GenerationRequest
    # All below belongs to the scheduler's thread, but for is_cancelled, which a client sets.
    handle: int | None = None
    num_new: int = 0
    is_cancelled: bool = False


class RowEvent(NamedTuple):
    """A new token of a row, or the error that ended it."""

    row_index: int
    token: NewToken | None = None
    error: ApiError | None = None


@dataclass(eq=False)
class Job:
    """The rows of one request and what has happened to them. Belongs to the event loop."""

    client: str = ""
    rows: list[Row] = field(default_factory=list)
    submitted: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self._events: list[RowEvent] = []
        self._has_events = asyncio.Event()

    async def next_events(self) -> list[RowEvent]:
        """Wait for something to happen; all that has happened since the last call."""
        await self._has_events.wait()
        self._has_events.clear()
        events, self._events = self._events, []
        return events

    def receive(self, events: list[RowEvent]) -> None:
        self._events += events
        self._has_events.set()


class Outbox:
    """The events of a step, or of several quick ones, given to the event loop by one call.

    Waking a client's task and writing to its socket costs as much for one token as for many, so
    that tokens wait for each other a little; what begins or ends a sequence is urgent.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: dict[Job, list[RowEvent]] = {}
        self._is_urgent = False
        self._last_sent = 0.0

    def put(
        self,
        row: Row,
        token: NewToken | None = None,
        error: ApiError | None = None,
        *,
        is_urgent: bool = True,
    ) -> None:
        self._events.setdefault(row.job, []).append(RowEvent(row.index, token, error))
        self._is_urgent |= is_urgent

    def send_if_due(self) -> None:
        """Deliver what is urgent or has waited for long enough."""
        if self._is_urgent or time.perf_counter() - self._last_sent >= _PATIENCE_SECONDS:
            self.send()

    def send(self) -> None:
        if self._events:
            # A closed loop has nobody left who waits.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_hand_over, self._events)
        self._events = {}
        self._is_urgent = False
        self._last_sent = time.perf_counter()


def _hand_over(events: dict[Job, list[RowEvent]]) -> None:
    for job, items in events.items():
        job.receive(items)


class FairQueue(Generic[Item]):
    """Items of many clients, who take turns; those of one client leave in the order they came."""

    def __init__(self) -> None:
        # The client whose turn is longest ago comes first.
        self._items: dict[str, collections.deque[Item]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._items.values()))

    def __iter__(self) -> Iterator[Item]:
        for items in self._items.values():
            yield from items

    def count(self, client: str) -> int:
        return len(self._items.get(client, ()))

    def push(self, client: str, item: Item) -> None:
        self._items.setdefault(client, collections.deque()).append(item)

    def next_client(self, held: Mapping[str, int], limit: int) -> str | None:
        """Of those that wait and hold less than the limit, the one that holds the least."""
        waiting = (client for client in self._items if held.get(client, 0) < limit)
        return min(waiting, key=lambda client: held.get(client, 0), default=None)

    def first(self, client: str) -> Item:
        return self._items[client][0]

    def pop(self, client: str) -> Item:
        """A client's first item; its next turn comes after those of all who wait now."""
        items = self._items.pop(client)
        item = items.popleft()
        if items:
            self._items[client] = items
        return item

    def remove(self, client: str, item: Item) -> bool:
        """Take an item out, if it is there."""
        items = self._items.get(client)
        if items is None or item not in items:
            return False
        items.remove(item)
        if not items:
            del self._items[client]
        return True

    def clear(self) -> None:
        self._items.clear()
