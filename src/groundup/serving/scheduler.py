"""Continuous batching: one thread owns the engine; requests join and leave between its steps.

Requests wait in a bounded queue that is fair between clients: no client may hold all rows or the
whole queue. Refused requests raise the ApiError sent to the client.
"""

import asyncio
import collections
import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

from groundup.generation import Engine, GenerationRequest
from groundup.generation.sampling import not_finite
from groundup.serving.api_errors import ApiError, internal_error
from groundup.serving.jobs import Job, Outbox, Row
from groundup.serving.metrics import Metrics
from groundup.serving.settings import ServerSettings

_log = logging.getLogger(__name__)

# Prompt tokens processed between two steps; running sequences wait for them.
_MAX_PROMPT_TOKENS = 4096


class Scheduler:
    """Passes requests to the engine and its tokens to their jobs."""

    def __init__(
        self,
        make_engine: Callable[[], Engine],
        settings: ServerSettings,
        metrics: Metrics,
        model: str = "",
    ) -> None:
        self._make_engine = make_engine
        self._settings = settings
        self._wake = threading.Condition()
        # By client, the least recently served first.
        self._waiting: dict[str, collections.deque[Row]] = {}
        self._running: dict[int, Row] = {}
        # Number of rows that each client occupies.
        self._held: collections.Counter[str] = collections.Counter()
        self._cancelled: list[Row] = []
        self._last_step: float | None = None
        self.status: Literal["ok", "stopping", "failed"] = "ok"
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="groundup-engine", daemon=True)
        self._metrics = metrics.of(model)
        self._metrics.queue_depth.set_function(lambda: self.num_waiting)
        self._metrics.running_rows.set_function(lambda: self.num_running)
        self._metrics.max_rows.set(settings.max_rows)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Create the engine, whose errors are raised here, and start the thread."""
        self._outbox = Outbox(loop)
        self._engine = self._make_engine()
        self._thread.start()

    def submit(self, requests: Sequence[GenerationRequest], client: str = "") -> Job:
        """Queue all sequences of a request, or none. Call it in the event loop, like `cancel`."""
        job = Job(client)
        job.rows = [Row(job, index, one) for index, one in enumerate(requests)]
        with self._wake:
            self._check_room(client, len(requests))
            self._waiting.setdefault(client, collections.deque()).extend(job.rows)
            self._wake.notify()
        return job

    def cancel(self, rows: Sequence[Row]) -> None:
        """Free these rows before the next step."""
        with self._wake:
            for row in rows:
                if row in self._waiting.get(row.job.client, ()):
                    self._take(row)
                else:
                    self._cancelled.append(row)
            self._wake.notify()

    def refuse_new(self) -> None:
        """Refuse new requests; finish the queued and running ones."""
        if self.status == "ok":
            self.status = "stopping"

    async def wait_until_idle(self) -> None:
        while self.num_waiting or self.num_running:
            await asyncio.sleep(0.02)

    def give_up(self) -> None:
        """End the thread after its current step; unfinished requests get an error."""
        self.refuse_new()
        with self._wake:
            self._is_stopped = True
            self._wake.notify()

    def stop(self) -> None:
        self.give_up()
        self._thread.join()
        # The metrics outlive the model, so they must not keep it in memory.
        self._metrics.queue_depth.set_function(lambda: 0)
        self._metrics.running_rows.set_function(lambda: 0)

    @property
    def num_waiting(self) -> int:
        with self._wake:
            return sum(map(len, self._waiting.values()))

    @property
    def num_running(self) -> int:
        with self._wake:
            return self._held.total()

    def _check_room(self, client: str, num_wanted: int) -> None:
        if self.status == "failed":
            raise _unavailable("the engine has failed: restart the server")
        if self.status == "stopping":
            raise _unavailable("the server is stopping")
        settings = self._settings
        num_all = self.num_waiting + self.num_running + num_wanted
        num_own = len(self._waiting.get(client, ())) + self._held[client] + num_wanted
        if num_all > settings.max_rows + settings.max_queue or num_own > settings.client_held:
            message = "too many requests are waiting: try again later"
            raise ApiError(429, message, code="queue_full", headers={"Retry-After": "2"})

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._waiting or self._running or self._cancelled or self._is_stopped):
                    self._wake.wait()
                if self._is_stopped:
                    break
                cancelled, self._cancelled = self._cancelled, []
            try:
                self._work(cancelled)
            except Exception:
                _log.exception("the engine failed; it is replaced")
                self._replace_engine()
            self._outbox.send_if_due(is_last=not self._running)
        self._fail(_unavailable("the server stopped"), with_waiting=True)

    def _work(self, cancelled: Sequence[Row]) -> None:
        """Remove cancelled rows, admit waiting ones, and take one step."""
        for row in cancelled:
            if row.handle is not None and self._running.pop(row.handle, None) is not None:
                self._engine.remove(row.handle)
                self._free(row)
                self._metrics.cancelled_texts.inc()
        admitted = self._admit()
        if admitted:
            # Prefill takes longer than a step: deliver the tokens generated so far.
            self._outbox.send()
        for row in admitted:
            self._begin(row)
        if self._running:
            self._step()

    def _admit(self) -> list[Row]:
        """Take waiting rows while rows are free and their prompts are within the limit."""
        admitted: list[Row] = []
        prompts: set[int] = set()
        num_tokens = 0
        with self._wake:
            while (row := self._next_row()) is not None:
                # The engine processes a prompt once for all rows that share it.
                prompt = row.request.prompt_ids
                num_tokens += 0 if id(prompt) in prompts else len(prompt)
                prompts.add(id(prompt))
                if admitted and num_tokens > _MAX_PROMPT_TOKENS:
                    break
                self._take(row)
                self._held[row.job.client] += 1
                admitted.append(row)
        return admitted

    def _next_row(self) -> Row | None:
        """The next waiting row of the client with the fewest rows, if below its limit."""
        if self.num_running >= self._settings.max_rows:
            return None
        clients = [one for one in self._waiting if self._held[one] < self._settings.client_rows]
        client = min(clients, key=self._held.__getitem__, default=None)
        return None if client is None else self._waiting[client][0]

    def _take(self, row: Row) -> None:
        """Remove it from the queue and move its client behind all others."""
        rows = self._waiting.pop(row.job.client)
        rows.remove(row)
        if rows:
            self._waiting[row.job.client] = rows

    def _begin(self, row: Row) -> None:
        """Add the sequence to the engine; an error fails only this row."""
        try:
            row.handle = self._engine.add(row.request)
        except Exception:
            _log.exception("the engine rejected a request")
            self._outbox.put(row, internal_error())
            self._free(row)
        else:
            self._running[row.handle] = row
            self._metrics.prompt_tokens.inc(len(row.request.prompt_ids))

    def _step(self) -> None:
        if self._last_step is None:
            self._last_step = time.perf_counter()
        tokens = self._engine.step()
        now = time.perf_counter()
        for handle, token in tokens:
            row = self._running[handle]
            row.num_new += 1
            if row.num_new == 1:
                self._metrics.time_to_first_token_seconds.observe(now - row.job.submitted)
            if token.finish_reason is not None:
                del self._running[handle]
                self._free(row)
            if token.finish_reason == "error":
                _log.error("%s", not_finite())
                self._outbox.put(row, internal_error())
            else:
                is_urgent = row.num_new == 1 or token.finish_reason is not None
                self._outbox.put(row, token, is_urgent=is_urgent)
        # Includes the prefill since the last step, which running rows waited for.
        self._metrics.step_seconds.observe(now - self._last_step)
        self._last_step = now if self._running else None
        self._metrics.generated_tokens.inc(len(tokens))

    def _free(self, row: Row) -> None:
        row.handle = None
        client = row.job.client
        with self._wake:
            self._held[client] -= 1
            # Drop clients with zero rows.
            self._held = +self._held

    def _replace_engine(self) -> None:
        """Fail the running rows and create a new engine."""
        self._metrics.engine_failures.inc()
        self._fail(internal_error(), with_waiting=False)
        self._last_step = None
        # Free the old engine's memory before the new one allocates as much.
        del self._engine
        try:
            self._engine = self._make_engine()
        except Exception:
            _log.exception("the engine cannot be replaced: all further requests are refused")
            self.status = "failed"
            self._fail(internal_error(), with_waiting=True)

    def _fail(self, error: ApiError, *, with_waiting: bool) -> None:
        with self._wake:
            rows = list(self._running.values())
            if with_waiting:
                rows += itertools.chain.from_iterable(self._waiting.values())
                self._waiting.clear()
            for row in rows:
                # A new engine may reuse the handle for another row.
                row.handle = None
                self._outbox.put(row, error)
            self._running.clear()
            self._held.clear()
        self._outbox.send()


def _unavailable(message: str) -> ApiError:
    return ApiError(503, message, code="unavailable", headers={"Retry-After": "5"})
