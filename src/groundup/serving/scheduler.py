"""Continuous batching: one thread owns the engine, and requests join and leave between its steps.

Requests wait in a queue of bounded length, from which clients take turns; none may hold all of the
rows or the whole queue. What is refused raises the ApiError that the client is told.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from groundup.errors import GroundupError
from groundup.generation.sampling import not_finite
from groundup.serving.api_errors import ApiError, internal_error
from groundup.serving.jobs import (
    FairQueue,
    Job,
    NotTakingRequestsError,
    Outbox,
    QueueFullError,
    Row,
)

if TYPE_CHECKING:
    from groundup.generation.request import GenerationRequest, NewToken
    from groundup.serving.metrics_page import Metrics
    from groundup.serving.settings import ServerSettings

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
    """Hands requests to the engine and its tokens back to their jobs."""

    def __init__(
        self, make_engine: Callable[[], EngineLike], settings: ServerSettings, metrics: Metrics
    ) -> None:
        self._make_engine = make_engine
        self._max_rows = settings.max_rows
        self._max_client_rows = settings.client_rows
        self._max_held = settings.max_rows + settings.max_queue
        self._max_client_held = settings.client_held
        self._metrics = metrics
        self._wake = threading.Condition()
        self._waiting: FairQueue[Row] = FairQueue()
        self._running: dict[int, Row] = {}
        # Rows that each client holds: admitted and not yet free.
        self._held: collections.Counter[str] = collections.Counter()
        self._cancelled: list[Row] = []
        self._calls: FairQueue[tuple[Callable[[], Any], Future[Any]]] = FairQueue()
        self._seconds_per_step = 0.0
        self._last_step: float | None = None
        self._is_refusing = False
        self._is_stopped = False
        self._is_broken = False
        self._thread = threading.Thread(target=self._run, name="groundup-engine", daemon=True)

    def start(self) -> None:
        """Make the engine and start the thread; called in the event loop that requests come from.

        Errors of the engine are raised here.
        """
        self._outbox = Outbox(asyncio.get_running_loop())
        self._engine = self._make_engine()
        self._thread.start()

    def submit(self, requests: Sequence[GenerationRequest], client: str = "") -> Job:
        """Queue all of the requests or none. Called in the event loop, as `cancel` is.

        requests: one for each sequence.
        client: whose they are; clients take turns.
        """
        job = Job(client)
        job.rows = [Row(job, index, request) for index, request in enumerate(requests)]
        with self._wake:
            self._check_room(client, len(requests))
            for row in job.rows:
                self._waiting.push(client, row)
            self._wake.notify()
        return job

    def cancel(self, rows: Sequence[Row]) -> None:
        """Nobody wants these any more: they are freed before the next step."""
        with self._wake:
            for row in rows:
                row.is_cancelled = True
                if not self._waiting.remove(row.job.client, row):
                    self._cancelled.append(row)
            self._wake.notify()

    async def between_steps(
        self, function: Callable[[], Result], client: str = "", job: Job | None = None
    ) -> Result:
        """Call a function in the engine's thread, where the model is free to be used.

        function: what to call.
        client: whose call it is; clients take turns.
        job: what it belongs to, if that has room already.
        """
        future: Future[Result] = Future()
        with self._wake:
            if job is None:
                self._check_room(client, 1)
            self._calls.push(client, (function, future))
            self._wake.notify()
        result: Result = await asyncio.wrap_future(future)
        return result

    def refuse_new(self) -> None:
        """From now on only what is queued and running is worked on."""
        self._is_refusing = True

    async def wait_until_idle(self) -> None:
        while self.num_waiting or self.num_running:
            await asyncio.sleep(0.02)

    def give_up(self) -> None:
        """End the thread after its current step; whoever still waits hears of it."""
        with self._wake:
            self._is_refusing = self._is_stopped = True
            self._wake.notify()

    def stop(self) -> None:
        """As `give_up`, and wait until it is done."""
        self.give_up()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def num_waiting(self) -> int:
        with self._wake:
            return len(self._waiting) + len(self._calls)

    @property
    def num_running(self) -> int:
        with self._wake:
            return self._held.total()

    @property
    def status(self) -> str:
        if self._is_broken:
            return "failed"
        return "stopping" if self._is_refusing else "ok"

    def _check_room(self, client: str, num_wanted: int) -> None:
        if self._is_broken:
            raise NotTakingRequestsError("the engine has failed: the server must be started again")
        if self._is_refusing:
            raise NotTakingRequestsError("the server is stopping")
        missing = self.num_waiting + self.num_running + num_wanted - self._max_held
        if missing > 0:
            raise QueueFullError(self._seconds_until_free(missing, list(self._running.values())))
        num_own = self._waiting.count(client) + self._calls.count(client) + self._held[client]
        missing = num_own + num_wanted - self._max_client_held
        if missing > 0:
            own = [row for row in list(self._running.values()) if row.job.client == client]
            raise QueueFullError(self._seconds_until_free(missing, own))

    def _seconds_until_free(self, num_rows: int, rows: Sequence[Row]) -> float:
        """When so many of the running rows are done, at the latest, at the present speed."""
        left = sorted(row.request.max_tokens - row.num_new for row in rows)
        if not left:
            return 1.0
        rounds, nth = divmod(num_rows - 1, len(left))
        return (rounds * left[-1] + left[nth]) * self._seconds_per_step

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._has_work() or self._is_stopped):
                    self._wake.wait()
                if self._is_stopped:
                    break
                cancelled, self._cancelled = self._cancelled, []
            has_failed = False
            try:
                self._work(cancelled)
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

    def _work(self, cancelled: Sequence[Row]) -> None:
        """One round: rows leave, a call is made, rows join, everyone gets a token."""
        for row in cancelled:
            if row.handle is not None and self._running.pop(row.handle, None) is not None:
                self._engine.remove(row.handle)
                self._free(row)
                self._metrics.count("cancelled_texts_total")
        self._make_call()
        admitted = self._admit()
        if admitted:
            # Reading their prompts takes longer than a step.
            self._outbox.send()
        for row in admitted:
            self._add(row)
        if self._running:
            self._step()

    def _make_call(self) -> None:
        with self._wake:
            client = self._calls.next_client({}, 1)
            if client is None:
                return
            function, future = self._calls.first(client)
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
        # Only now: whoever looks meanwhile must not find that nothing is left to do.
        with self._wake:
            self._calls.pop(client)

    def _admit(self) -> list[Row]:
        """As many of those waiting as there are free rows and time to read their prompts."""
        admitted: list[Row] = []
        prompts: set[int] = set()
        num_ids = 0
        with self._wake:
            while self.num_running < self._max_rows:
                client = self._waiting.next_client(self._held, self._max_client_rows)
                if client is None:
                    break
                prompt = self._waiting.first(client).request.prompt_ids
                # The engine reads a prompt once for all the rows that begin with it.
                if id(prompt) not in prompts:
                    num_ids += len(prompt)
                    prompts.add(id(prompt))
                if admitted and num_ids > _PROMPT_IDS_A_STEP:
                    break
                self._held[client] += 1
                admitted.append(self._waiting.pop(client))
        return admitted

    def _add(self, row: Row) -> None:
        """A request that cannot be begun fails alone."""
        try:
            row.handle = self._engine.add(row.request)
        except Exception as error:
            told = ApiError(400, str(error))
            if not isinstance(error, GroundupError):
                _log.exception("the engine could not begin a request")
                told = internal_error()
            self._outbox.put(row, error=told)
            self._free(row)
            return
        self._running[row.handle] = row
        self._metrics.count("prompt_tokens_total", len(row.request.prompt_ids))

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
                self._metrics.first_token_seconds.observe(now - row.job.submitted)
            if token.finish_reason is not None:
                del self._running[handle]
                self._free(row)
            if token.finish_reason == "error":
                _log.error("%s", not_finite())
                self._outbox.put(row, error=internal_error())
            elif not row.is_cancelled:
                is_urgent = row.num_new == 1 or token.finish_reason is not None
                self._outbox.put(row, token, is_urgent=is_urgent)
        # With the prompts that were read since the last one: so long did a running row wait.
        seconds = now - self._last_step
        self._last_step = now if self._running else None
        self._metrics.count("engine_steps_total")
        self._metrics.count("generated_tokens_total", len(tokens))
        if len(tokens) > num_first:
            self._metrics.token_seconds.observe(seconds, len(tokens) - num_first)
        # A mean that forgets: a step counts for a tenth, the ten before it for most of the rest.
        weight = 0.1 if self._seconds_per_step else 1.0
        self._seconds_per_step += weight * (seconds - self._seconds_per_step)

    def _free(self, row: Row) -> None:
        row.handle = None
        client = row.job.client
        with self._wake:
            self._held[client] -= 1
            if not self._held[client]:
                del self._held[client]

    def _begin_again(self) -> None:
        """Fail what was running and replace the broken engine."""
        self._metrics.count("engine_failures_total")
        for row in list(self._running.values()):
            self._outbox.put(row, error=internal_error())
            # The new engine may give the same handle to somebody else.
            row.handle = None
        with self._wake:
            self._running.clear()
            self._held.clear()
        self._last_step = None
        # The memory of the old one must be free before the new one asks for as much.
        del self._engine
        try:
            self._engine = self._make_engine()
        except Exception:
            _log.exception("the engine cannot be made anew: every request is refused from now on")
            self._is_broken = True
            self._fail_everyone(internal_error())

    def _fail_everyone(self, error: ApiError) -> None:
        with self._wake:
            for row in (*self._running.values(), *self._waiting):
                self._outbox.put(row, error=error)
            self._running.clear()
            self._waiting.clear()
            self._held.clear()
            calls = list(self._calls)
            self._calls.clear()
        for _, future in calls:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
        self._outbox.send()
