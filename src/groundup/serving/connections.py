"""Connections that may not linger: time to send a request, time to take an answer, and how many.

uvicorn bounds none of these, so that a few thousand clients that send a byte now and then could
keep everybody else out. Built on uvicorn's own h11 protocol.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from groundup.serving.api_errors import ApiError
from groundup.serving.guards import SECURITY_HEADERS

if TYPE_CHECKING:
    from groundup.serving.settings import ServerSettings

_MAX_HEAD_BYTES = 16_384
# Chunks of a byte take a thousand times as long to read as the same bytes in one.
_MIN_BYTES_A_PIECE = 64
_SMALL_PIECES = 256


def guarded_protocol(settings: ServerSettings, max_connections: int) -> type[H11Protocol]:
    """The protocol class for a server of these settings."""

    class GuardedProtocol(_GuardedProtocol):
        limits = _Limits(max_connections, settings.request_seconds, settings.stalled_write_seconds)

    return GuardedProtocol


class _Limits:
    def __init__(self, max_connections: int, request_seconds: float, write_seconds: float) -> None:
        self.max_connections = max_connections
        self.request_seconds = request_seconds
        self.write_seconds = write_seconds
        # Connections whose request is not complete, the oldest first.
        self.incomplete: dict[_GuardedProtocol, None] = {}


class _GuardedProtocol(H11Protocol):
    """Reading: from the first byte of a request to its last. Then the request is the app's."""

    limits: _Limits
    _read_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn = _Connection(h11.SERVER, _MAX_HEAD_BYTES)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections and not self._make_room():
            self._end(ApiError(503, "too many connections are open", code="too_many_connections"))
            return
        self._begin_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_reading()
        self._stop_write_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._has_whole_request():
            self._end_reading()
        elif self._read_timer is None:
            self._begin_reading()

    def handle_events(self) -> None:
        super().handle_events()
        # The task of a new request has not begun: it takes its `send` when it does.
        if isinstance(self.cycle, RequestResponseCycle) and "send" not in vars(self.cycle):
            self.cycle.send = _quick_send(self.cycle)  # type: ignore[assignment, method-assign]

    def on_response_complete(self) -> None:
        self._end_reading()
        # An idle connection waits for its next request under uvicorn's own timer, but it is the
        # first to go when there are too many.
        self.limits.incomplete[self] = None
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_write_timer()
        self._write_timer = self.loop.call_later(self.limits.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_write_timer()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._end(ApiError(400, "this is no valid HTTP request", code="invalid_http"))

    def shutdown(self) -> None:
        """The server ends: a request that has not come by now is not waited for."""
        if self.cycle is not None and not self._has_whole_request():
            self.transport.abort()
        else:
            super().shutdown()

    def _has_whole_request(self) -> bool:
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    def _begin_reading(self) -> None:
        self.limits.incomplete.pop(self, None)
        self.limits.incomplete[self] = None
        self._read_timer = self.loop.call_later(self.limits.request_seconds, self._give_up)

    def _end_reading(self) -> None:
        self.limits.incomplete.pop(self, None)
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _make_room(self) -> bool:
        """Close the connection that has been at its request for longest, if there is one."""
        for other in self.limits.incomplete:
            other.transport.abort()
            other._end_reading()
            # It is counted until its loss is reported, which may take many new connections.
            self.connections.discard(other)
            return True
        return False

    def _give_up(self) -> None:
        self._read_timer = None
        self._end(
            ApiError(
                408,
                f"the request was not complete after {self.limits.request_seconds:g} s",
                code="request_timeout",
            )
        )

    def _end(self, error: ApiError) -> None:
        """Answer without the app, where nothing has been answered yet, and close."""
        cycle: Any = self.cycle
        if not self.transport.is_closing() and (
            cycle is None or cycle.response_complete or not cycle.response_started
        ):
            body = json.dumps(error.body()).encode()
            headers = {
                "content-type": "application/json",
                "content-length": str(len(body)),
                "connection": "close",
                **SECURITY_HEADERS,
            }
            lines = [
                f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}",
                *(f"{name.lower()}: {value}" for name, value in headers.items()),
            ]
            self.transport.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        self._end_reading()
        self.transport.close()


class _Connection(h11.Connection):
    """h11's rules of HTTP, and three of ours: a known version, a short head, no crumbs."""

    _num_pieces = 0
    _num_bytes = 0

    def next_event(self) -> Any:
        # h11 counts what comes later alone, not what comes at once.
        if self.their_state is h11.IDLE and len(data := self.trailing_data[0]) > _MAX_HEAD_BYTES:
            head = data[:_MAX_HEAD_BYTES]
            if b"\n\r\n" not in head and b"\n\n" not in head:
                raise h11.RemoteProtocolError("the head is too long")
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._num_pieces = self._num_bytes = 0
            if event.http_version not in (b"1.0", b"1.1"):
                raise h11.RemoteProtocolError("unknown version of HTTP")
        elif isinstance(event, h11.Data):
            self._num_pieces += 1
            self._num_bytes += len(event.data)
            if self._num_pieces > _SMALL_PIECES + self._num_bytes // _MIN_BYTES_A_PIECE:
                raise h11.RemoteProtocolError("the body comes in too many pieces")
        return event


def _quick_send(cycle: RequestResponseCycle) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """A request's `send` that puts the pieces of a stream into chunks itself.

    uvicorn lets h11 do it, which keeps no count of them and takes longer than all else that a
    token costs here.
    """
    send = cycle.send
    is_chunked = False

    async def send_quickly(message: Any) -> None:
        nonlocal is_chunked
        if is_chunked and message.get("more_body"):
            if cycle.flow.write_paused and not cycle.disconnected:
                await cycle.flow.drain()
            body = message["body"]
            if body and not cycle.disconnected:
                cycle.transport.write(b"%x\r\n%s\r\n" % (len(body), body))
            return
        await send(message)
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message["headers"]}
            scope = cycle.scope
            is_chunked = (
                scope["http_version"] == "1.1"
                and scope["method"] != "HEAD"
                and not names & {b"content-length", b"transfer-encoding"}
            )

    return send_quickly
