"""Continuous batching: one thread owns the engine, and requests join and leave between its steps.

Requests wait in a queue of bounded length. What HTTP makes of a full queue is left to others.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from groundup.errors import GroundupError
from groundup.generation.sampling import not_finite
from groundup.serving.tickets import (
    EngineFailedError,
    NotTakingRequestsError,
    Outbox,
    QueueFullError,
    Row,
    Ticket,
)

if TYPE_CHECKING:
    from groundup.generation.request import GenerationRequest, NewToken
    from groundup.serving.metrics_page import Metrics

Result = TypeVar("Result")

_log = logging.getLogger(__name__)

# Prompts are read between two steps; while a burst of long ones is read, nobody gets a new token.
_PROMPT_IDS_A_STEP = 4096


class EngineLike(Protocol):
    """What is used of `generation.Engine`."""

    def add(self, request: GenerationRequest) -> int: ...
    def step(self) -> list[tuple[int, NewToken]]: ...
    def remove(self, handle: int) -> None: ...


class Scheduler:
    """Hands requests to the engine and its tokens back to their tickets."""

    def __init__(
        self,
        make_engine: Callable[[], EngineLike],
        max_rows: int,
        max_queue: int,
        metrics: Metrics,
    ) -> None:
        self._make_engine = make_engine
        self._max_rows = max_rows
        self._num_places = max_rows + max_queue
        self._metrics = metrics
        self._wake = threading.Condition()
        self._waiting: collections.deque[Row] = collections.deque()
        self._running: dict[int, Row] = {}
        self._outbox = Outbox()
        self._cancelled: list[Row] = []
        self._calls: collections.deque[Callable[[], None]] = collections.deque()
        self._num_admitted = 0
        self._seconds_per_step = 0.0
        self._last_step: float | None = None
        self._is_refusing = False
        self._is_stopped = False
        self._is_broken = False
        self._thread = threading.Thread(target=self._run, name="groundup-engine", daemon=True)

    def start(self) -> None:
        """Make the engine and set the thread to work; errors of the engine are raised here."""
        self._engine = self._make_engine()
        self._thread.start()

    def submit(self, requests: Sequence[GenerationRequest]) -> Ticket:
        """Queue all of the requests or none. Called in an event loop, as `cancel` is."""
        ticket = Ticket()
        ticket.rows = [Row(ticket, index, request) for index, request in enumerate(requests)]
        with self._wake:
            self._check_place(len(requests))
            self._waiting.extend(ticket.rows)
            self._wake.notify()
        return ticket

    def cancel(self, rows: Sequence[Row]) -> None:
        """Nobody wants these any more: they give their places free before the next step."""
        with self._wake:
            for row in rows:
                row.is_cancelled = True
                if row in self._waiting:
                    self._waiting.remove(row)
                else:
                    self._cancelled.append(row)
            self._wake.notify()

    async def between_steps(self, function: Callable[[], Result]) -> Result:
        """Call a function in the engine's thread, where the model is free to be used."""
        future: concurrent.futures.Future[Result] = concurrent.futures.Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        with self._wake:
            self._check_place(1)
            self._calls.append(call)
            self._wake.notify()
        return await asyncio.wrap_future(future)

    def refuse_new(self) -> None:
        """From now on only what is queued and running is worked on."""
        self._is_refusing = True

    async def wait_until_idle(self) -> None:
        while self.num_waiting or self.num_running:
            await asyncio.sleep(0.02)

    def stop(self) -> None:
        """End the thread after its current step; whoever still waits hears of it."""
        with self._wake:
            self._is_refusing = self._is_stopped = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + len(self._calls)

    @property
    def num_running(self) -> int:
        return self._num_admitted

    @property
    def status(self) -> str:
        if self._is_broken:
            return "failed"
        return "stopping" if self._is_refusing else "ok"

    def _check_place(self, num_wanted: int) -> None:
        if self._is_broken:
            raise NotTakingRequestsError("the engine has failed: the server must be started again")
        if self._is_refusing:
            raise NotTakingRequestsError("the server is stopping")
        missing = self.num_waiting + self._num_admitted + num_wanted - self._num_places
        if missing > 0:
            raise QueueFullError(self._seconds_until_free(missing))

    def _seconds_until_free(self, num_places: int) -> float:
        """When so many of the running rows are done, at the latest, at the present speed."""
        left = sorted(row.request.max_tokens - row.num_new for row in list(self._running.values()))
        if not left:
            return 1.0
        rounds, nth = divmod(num_places - 1, len(left))
        return (rounds * left[-1] + left[nth]) * self._seconds_per_step

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._has_work() or self._is_stopped):
                    self._wake.wait()
                if self._is_stopped:
                    break
                cancelled, self._cancelled = self._cancelled, []
                calls = list(self._calls)
            has_failed = False
            try:
                self._work(cancelled, calls)
            except Exception:
                _log.exception("the engine failed; it is made anew")
                has_failed = True
            # Not inside the handler: the error holds on to the engine and its memory.
            if has_failed:
                self._begin_again()
            if self._running:
                self._outbox.send_if_due()
            else:
                self._outbox.send()
        self._fail_everyone(NotTakingRequestsError("the server stopped"))

    def _has_work(self) -> bool:
        return bool(self._waiting or self._running or self._cancelled or self._calls)

    def _work(self, cancelled: Sequence[Row], calls: Sequence[Callable[[], None]]) -> None:
        """One turn: rows leave, calls are made, rows join, everyone gets a token."""
        for row in cancelled:
            if row.handle is not None and self._running.pop(row.handle, None) is not None:
                self._engine.remove(row.handle)
                self._free(row)
                self._metrics.count_cancelled()
        for call in calls:
            call()
            with self._wake:
                self._calls.popleft()
        admitted = self._admit()
        if admitted:
            # Reading their prompts takes longer than a step.
            self._outbox.send()
        for row in admitted:
            self._add(row)
        if self._running:
            self._step()

    def _admit(self) -> list[Row]:
        """As many of those waiting as there are free rows and time to read their prompts."""
        admitted: list[Row] = []
        num_ids = 0
        with self._wake:
            while self._waiting and self._num_admitted < self._max_rows:
                prompt = self._waiting[0].request.prompt_ids
                # The engine reads a prompt once for all the texts that begin with it.
                if not admitted or admitted[-1].request.prompt_ids is not prompt:
                    num_ids += len(prompt)
                if admitted and num_ids > _PROMPT_IDS_A_STEP:
                    break
                # Counted first: whoever looks meanwhile must not find that nothing is left to do.
                self._num_admitted += 1
                admitted.append(self._waiting.popleft())
        return admitted

    def _add(self, row: Row) -> None:
        """A request that cannot be begun fails alone."""
        try:
            row.handle = self._engine.add(row.request)
        except Exception as error:
            if not isinstance(error, GroundupError):
                _log.exception("the engine could not begin a request")
                error = EngineFailedError()
            self._outbox.put(row, error=error)
            self._free(row)
            return
        self._running[row.handle] = row
        self._metrics.count_prompt(len(row.request.prompt_ids))

    def _step(self) -> None:
        if self._last_step is None:
            self._last_step = time.perf_counter()
        tokens = self._engine.step()
        now = time.perf_counter()
        num_first = 0
        for handle, token in tokens:
            row = self._running[handle]
            row.num_new += 1
            if row.num_new == 1:
                num_first += 1
                self._metrics.first_token_seconds.observe(now - row.ticket.submitted)
            if token.finish_reason is not None:
                del self._running[handle]
                self._free(row)
            if token.finish_reason == "error":
                _log.error("%s", not_finite())
                self._outbox.put(row, error=EngineFailedError())
            elif not row.is_cancelled:
                is_urgent = row.num_new == 1 or token.finish_reason is not None
                self._outbox.put(row, token, is_urgent=is_urgent)
        # With the prompts that were read since the last one: so long did a running text wait.
        seconds = now - self._last_step
        self._last_step = now if self._running else None
        self._metrics.count_step(seconds, len(tokens), len(tokens) - num_first)
        # A mean that forgets: a step counts for a tenth, the ten before it for most of the rest.
        weight = 0.1 if self._seconds_per_step else 1.0
        self._seconds_per_step += weight * (seconds - self._seconds_per_step)

    def _free(self, row: Row) -> None:
        row.handle = None
        with self._wake:
            self._num_admitted -= 1

    def _begin_again(self) -> None:
        """Fail what was running and put a new engine in the place of the broken one."""
        self._metrics.count_engine_failure()
        for row in list(self._running.values()):
            self._outbox.put(row, error=EngineFailedError())
            # The new engine may give the same handle to somebody else.
            row.handle = None
        with self._wake:
            self._running.clear()
            self._num_admitted = 0
        self._last_step = None
        # The memory of the old one must be free before the new one asks for as much.
        del self._engine
        try:
            self._engine = self._make_engine()
        except Exception:
            _log.exception("the engine cannot be made anew: every request is refused from now on")
            self._is_broken = True
            self._fail_everyone(EngineFailedError())

    def _fail_everyone(self, error: Exception) -> None:
        with self._wake:
            for row in (*self._running.values(), *self._waiting):
                self._outbox.put(row, error=error)
            self._running.clear()
            self._waiting.clear()
            self._num_admitted = 0
            calls = list(self._calls)
            self._calls.clear()
        for call in calls:
            call()
        self._outbox.send()
