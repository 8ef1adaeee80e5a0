"""Connections that may not linger: time to send a request, time to read an answer, and how many.

uvicorn bounds none of these: a few thousand clients that send a byte now and then could keep
everybody else out. The protocol here is uvicorn's own with asyncio's callbacks overridden.
"""

import asyncio
import collections
import re
from http import HTTPStatus

from uvicorn.protocols.http.h11_impl import H11Protocol

from groundup.serving.api_errors import ApiError
from groundup.serving.guards import SECURITY_HEADERS
from groundup.serving.settings import ServerSettings

# The line before a chunk of less than 256 bytes. Chunks of a byte take h11 a thousand times as long
# as the same bytes in one, and nobody else is answered meanwhile.
_CRUMB = re.compile(rb"\r\n0*[0-9A-Fa-f]{1,2}[ \t]*(?:;[^\r\n]*)?\r\n")
_MAX_CRUMBS = 256
_MIN_CHUNK_BYTES = 64
# Reading a request and beginning to answer it takes the event loop a millisecond: all requests of a
# burst at once would take seconds, in which nobody else is answered.
_READ_AT_ONCE = 4


class Connection(H11Protocol):
    """One connection: a timer while its request arrives, another while its client does not read."""

    settings: ServerSettings
    max_connections: int
    # Those that have sent something: a few are read in each round of the event loop.
    waiting: collections.deque["Connection"]
    _arrived = b""
    _opened = 0.0
    _read_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    @property
    def has_request(self) -> bool:
        """Whether a request has arrived completely and is being answered."""
        cycle = self.cycle
        return cycle is not None and not (cycle.more_body or cycle.response_complete)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._opened = self.loop.time()
        if len(self.connections) > self.max_connections and not self._make_room():
            self._refuse(ApiError(503, "too many connections are open", code="unavailable"))
            return
        self._start_read_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_read_timer()
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        is_waiting, self._arrived = bool(self._arrived), self._arrived + data
        if is_waiting:
            self.flow.pause_reading()
        elif data.startswith(b"GET "):
            # Pages and monitors are not kept waiting.
            self.read()
        else:
            self.waiting.append(self)
            if len(self.waiting) == 1:
                self.loop.call_soon(self.read_some)

    def read_some(self) -> None:
        for _ in range(min(_READ_AT_ONCE, len(self.waiting))):
            self.waiting.popleft().read()
        if self.waiting:
            self.loop.call_soon(self.read_some)

    def read(self) -> None:
        """Take in what has arrived: some of a request, or of several."""
        data, self._arrived = self._arrived, b""
        self.flow.resume_reading()
        if self.transport.is_closing():
            return
        if len(_CRUMB.findall(data)) > _MAX_CRUMBS + len(data) // _MIN_CHUNK_BYTES:
            self._refuse(ApiError(400, "the body has too many small chunks", code="invalid_http"))
            return
        if self._read_timer is None and not self.has_request:
            self._start_read_timer()
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self.has_request:
            self._stop_read_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        seconds = self.settings.stalled_write_seconds
        self._write_timer = self.loop.call_later(seconds, self.transport.abort)

    def resume_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().resume_writing()

    def _make_room(self) -> bool:
        """Close the oldest other connection without a complete request, if there are too many."""
        others = [one for one in self.connections if isinstance(one, Connection) and one != self]
        opened = [one for one in others if not one.transport.is_closing()]
        if len(opened) < self.max_connections:
            return True
        waiting = [one for one in opened if not one.has_request]
        if waiting:
            min(waiting, key=lambda one: one._opened).transport.abort()
        return bool(waiting)

    def _start_read_timer(self) -> None:
        seconds = self.settings.request_seconds
        message = f"the request was not complete after {seconds:g} s"
        error = ApiError(408, message, code="request_timeout")
        self._read_timer = self.loop.call_later(seconds, self._refuse, error)

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _refuse(self, error: ApiError) -> None:
        """Answer without the app, unless it has begun to, and close."""
        self._stop_read_timer()
        cycle = self.cycle
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            self.transport.abort()
            return
        response = error.response()
        response.headers.update({**SECURITY_HEADERS, "connection": "close"})
        head = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}".encode()]
        head += [b": ".join(pair) for pair in response.raw_headers]
        self.transport.write(b"\r\n".join(head) + b"\r\n\r\n" + bytes(response.body))
        self.transport.close()
