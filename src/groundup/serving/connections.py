"""Connections that may not linger: time to send a request, time to take an answer, and how many.

uvicorn bounds none of these, so that a few thousand clients that send a byte now and then could
keep everybody else out. The protocol here is uvicorn's own with asyncio's callbacks overridden.
When a request is complete, and when it is done, `guards` tells by `scope["state"]["connection"]`.
"""

from __future__ import annotations

import asyncio
import json
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from groundup.serving.api_errors import ApiError
from groundup.serving.guards import SECURITY_HEADERS

if TYPE_CHECKING:
    from groundup.serving.settings import ServerSettings

# The line before a chunk of less than 256 bytes. Chunks of a byte take h11 a thousand times as long
# as the same bytes in one, and nobody else is answered meanwhile.
_CRUMB = re.compile(rb"\r\n0*[0-9A-Fa-f]{1,2}[ \t]*(?:;[^\r\n]*)?\r\n")
_MAX_CRUMBS = 256
_MIN_CHUNK_BYTES = 64


class Connections:
    """The open connections of one server, and what each of them may take."""

    def __init__(self, settings: ServerSettings, max_connections: int) -> None:
        self.max_connections = max_connections
        self.request_seconds = settings.request_seconds
        self.write_seconds = settings.stalled_write_seconds
        self.open: set[Connection] = set()
        # Those whose request is not complete or not begun, the oldest first.
        self.incomplete: dict[Connection, None] = {}

    def protocol(self) -> type[Connection]:
        """The class that uvicorn makes connections of."""
        return type("BoundedConnection", (Connection,), {"all": self})

    def drop_incomplete(self, count: int | None = None) -> int:
        """Close those that have been at their request for longest; how many there were."""
        dropped = list(self.incomplete)[:count]
        for connection in dropped:
            connection.transport.abort()
            connection.forget()
        return len(dropped)


class Connection(H11Protocol):
    """One connection: a timer while its request comes, another while its client does not read."""

    all: Connections
    _request: object | None = None
    _read_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def __init__(
        self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None
    ) -> None:
        super().__init__(config, server_state, {**app_state, "connection": self}, _loop)

    def request_is_complete(self, request: object) -> None:
        """All of a request has come, or it is being answered: it takes as long as it takes."""
        self._request = request
        self._stop_reading()

    def request_is_done(self, request: object) -> None:
        """The connection is idle, unless the next request of it has begun meanwhile."""
        if self._request is request and self in self.all.open:
            self._request = None
            self.all.incomplete[self] = None

    def forget(self) -> None:
        """It no longer counts, even if its loss is reported later."""
        self._stop_reading()
        self.all.open.discard(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.all.open) >= self.all.max_connections and not self.all.drop_incomplete(1):
            self._end(ApiError(503, "too many connections are open", code="too_many_connections"))
            return
        self.all.open.add(self)
        self._begin_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.forget()
        self._stop_write_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if len(_CRUMB.findall(data)) > _MAX_CRUMBS + len(data) // _MIN_CHUNK_BYTES:
            self._end(ApiError(400, "the body comes in too many chunks", code="invalid_http"))
            return
        if self._request is None and self._read_timer is None:
            self._begin_reading()
        super().data_received(data)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_write_timer()
        self._write_timer = self.loop.call_later(self.all.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_write_timer()
        super().resume_writing()

    def _begin_reading(self) -> None:
        self.all.incomplete.pop(self, None)
        self.all.incomplete[self] = None
        seconds = self.all.request_seconds
        message = f"the request was not complete after {seconds:g} s"
        error = ApiError(408, message, code="request_timeout")
        self._read_timer = self.loop.call_later(seconds, self._end, error)

    def _stop_reading(self) -> None:
        self.all.incomplete.pop(self, None)
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _end(self, error: ApiError) -> None:
        """Answer without the app, unless that has begun to, and close."""
        if self._request is not None:
            self.transport.abort()
            return
        body = json.dumps(error.body()).encode()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            **SECURITY_HEADERS,
        }
        head = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}"]
        head += [f"{name.lower()}: {value}" for name, value in headers.items()]
        self.transport.write("\r\n".join(head).encode() + b"\r\n\r\n" + body)
        self._stop_reading()
        self.transport.close()
