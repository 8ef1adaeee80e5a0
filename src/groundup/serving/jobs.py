"""What waits and runs in the scheduler: a job is one request, a row is one of its sequences.

The engine's thread puts new tokens into an Outbox; it hands them to their jobs in the event loop.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass, field

from groundup.generation.request import GenerationRequest, NewToken
from groundup.serving.api_errors import ApiError

# A client's tokens wait for each other for so long; a step of a small model takes a tenth of it.
_PATIENCE_SECONDS = 0.01


@dataclass(eq=False)
class Row:
    """Sequence number `index` of its job."""

    job: "Job"
    index: int
    request: GenerationRequest
    # The rest belongs to the scheduler's thread, except is_cancelled, which a client sets.
    handle: int | None = None
    num_new: int = 0
    is_cancelled: bool = False


# A new token of a row, or the error that ended it.
News = NewToken | ApiError


@dataclass(eq=False)
class Job:
    """The rows of one request and what has happened to them. Belongs to the event loop."""

    client: str = ""
    rows: list[Row] = field(default_factory=list)
    submitted: float = field(default_factory=time.perf_counter)

    _events: list[tuple[int, News]] = field(default_factory=list)
    _has_events: asyncio.Event = field(default_factory=asyncio.Event)

    async def next_events(self) -> list[tuple[int, News]]:
        """Wait for news; all since the last call, each with the number of its row."""
        await self._has_events.wait()
        self._has_events.clear()
        events, self._events = self._events, []
        return events

    def receive(self, events: list[tuple[int, News]]) -> None:
        self._events += events
        self._has_events.set()


class Outbox:
    """Hands the events of a step, or of several quick ones, to the event loop in one call.

    Waking a client's task and writing to its socket costs as much for one token as for many, so
    tokens wait for each other a little; what begins or ends a sequence is urgent.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: dict[Job, list[tuple[int, News]]] = {}
        self._is_urgent = False
        self._last_sent = 0.0

    def put(self, row: Row, news: News, *, is_urgent: bool = True) -> None:
        self._events.setdefault(row.job, []).append((row.index, news))
        self._is_urgent |= is_urgent

    def send_if_due(self, is_last: bool = False) -> None:
        is_late = time.perf_counter() - self._last_sent >= _PATIENCE_SECONDS
        if is_last or self._is_urgent or is_late:
            self.send()

    def send(self) -> None:
        events, self._events = self._events, {}

        def hand_over() -> None:
            for job, items in events.items():
                job.receive(items)

        # Nobody waits on a closed loop.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(hand_over)
        self._is_urgent = False
        self._last_sent = time.perf_counter()
