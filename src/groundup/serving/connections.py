"""Limits on connections: time to send a request, time to read the response, number of connections.

uvicorn bounds none of these, so a few thousand slow clients could lock out all others. The protocol
is uvicorn's own with asyncio's callbacks overridden.
"""

import asyncio
import collections
import re
from http import HTTPStatus

from uvicorn.protocols.http.h11_impl import H11Protocol

from groundup.serving.api_errors import ApiError
from groundup.serving.guards import SECURITY_HEADERS
from groundup.serving.settings import ServerSettings

# The header of a chunk below 256 bytes. One-byte chunks take h11 a thousand times as long as one
# chunk with the same bytes, and block the event loop.
_SMALL_CHUNK = re.compile(rb"\r\n0*[0-9A-Fa-f]{1,2}[ \t]*(?:;[^\r\n]*)?\r\n")
_MAX_SMALL_CHUNKS = 256
_MIN_CHUNK_BYTES = 64
# Connections read per round of the event loop. Starting one request takes a millisecond, so a burst
# in one round would block the loop for seconds.
_MAX_READS = 4


class Connection(H11Protocol):
    """A connection with timers for receiving a request and for a client that stops reading."""

    settings: ServerSettings
    max_connections: int
    # Connections with unread data.
    waiting: collections.deque["Connection"]
    _arrived = b""
    _opened = 0.0
    _read_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    @property
    def has_request(self) -> bool:
        """Whether a complete request has arrived and is being answered."""
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
            # Pages, health and metrics are not queued.
            self.read()
        else:
            self.waiting.append(self)
            if len(self.waiting) == 1:
                self.loop.call_soon(self.read_some)

    def read_some(self) -> None:
        for _ in range(min(_MAX_READS, len(self.waiting))):
            self.waiting.popleft().read()
        if self.waiting:
            self.loop.call_soon(self.read_some)

    def read(self) -> None:
        """Parse the data that has arrived: part of a request, or several requests."""
        data, self._arrived = self._arrived, b""
        self.flow.resume_reading()
        if self.transport.is_closing():
            return
        if len(_SMALL_CHUNK.findall(data)) > _MAX_SMALL_CHUNKS + len(data) // _MIN_CHUNK_BYTES:
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
        """At the limit, close the oldest other connection without a complete request."""
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
        self._read_timer = self.loop.call_later(seconds, self._time_out, seconds)

    def _time_out(self, seconds: float) -> None:
        if self._arrived:
            # The client has sent something in time: this server has been too busy to read it.
            self._start_read_timer()
            return
        message = f"the request was not complete after {seconds:g} s"
        self._refuse(ApiError(408, message, code="request_timeout"))

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, msg, code="invalid_http"))

    def _refuse(self, error: ApiError) -> None:
        """Send the error without the app, unless its response has started, and close."""
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
