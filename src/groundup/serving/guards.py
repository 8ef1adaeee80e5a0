"""What stands before every route: who may ask, from where, and how much they may send.

Pure ASGI, so that a body is refused before it is read and streams pass through untouched. It also
counts the answers and puts the security headers on them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import logging
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from groundup.serving.api_errors import ApiError, excerpt, internal_error

if TYPE_CHECKING:
    from groundup.serving.metrics_page import Metrics
    from groundup.serving.settings import ServerSettings

_log = logging.getLogger(__name__)

# Scripts, styles, connections and everything else come from here alone.
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data: blob:; "
        "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}

# A browser cannot send a token when it opens a page; these files hold no secret.
_OPEN_PATHS = ("/", "/chat", "/runs", "/health")
_OPEN_PREFIX = "/static/"

# After a refusal the client is still sending: closing at once would lose it the answer. So much is
# thrown away, for so long, then the connection ends.
_DISCARD_BODIES = 8
_DISCARD_SECONDS = 2.0


class Guards:
    """ASGI middleware: the checks of one server."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics) -> None:
        self._app = app
        self.settings = settings
        self.metrics = metrics
        self._is_local = is_loopback(settings.host)
        self._tokens = [token.get_secret_value().encode() for token in settings.tokens]
        self.headers = [(k.lower().encode(), v.encode()) for k, v in SECURITY_HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http":
            request = _GuardedRequest(scope, receive, send, self)
            try:
                await self._answer(request)
            finally:
                request.tell_done()

    async def _answer(self, request: _GuardedRequest) -> None:
        scope = request.scope
        max_bytes = self.settings.max_body_bytes
        try:
            scope["client_name"] = self._check(scope)
            announced = _header(scope, b"content-length")
            if announced is not None and announced.isdigit() and int(announced) > max_bytes:
                raise too_large(max_bytes)
        except ApiError as error:
            await request.refuse(error)
            return
        if scope["method"] == "HEAD":
            # As GET; the protocol below sees to it that no body is sent.
            request.scope = {**scope, "method": "GET"}
        try:
            await self._app(request.scope, request.receive, request.send)
        except (_BodyTooLargeError, Exception) as error:
            is_too_large = isinstance(error, _BodyTooLargeError)
            if not is_too_large:
                _log.exception("%s %s failed", scope["method"], excerpt(scope["path"]))
            if request.is_answered:
                raise
            await request.refuse(too_large(max_bytes) if is_too_large else internal_error())

    def _check(self, scope: Scope) -> str:
        """Whose request it is, by key or else by address; an ApiError where it is refused."""
        host = _header(scope, b"host")
        if self._is_local and not _is_local_name(host, self.settings.host):
            raise ApiError(
                403,
                f"the Host header is {excerpt(host or '')}, but this server answers only by a name "
                f"of this machine: use http://127.0.0.1 or http://localhost",
                code="foreign_host",
            )
        origin = _header(scope, b"origin")
        if origin is not None and origin.partition("://")[2].lower() != (host or "").lower():
            raise ApiError(
                403,
                f"pages of {excerpt(origin)} may not use this server",
                code="foreign_origin",
            )
        if self._tokens and not _is_open(scope):
            number = self._check_token(_header(scope, b"authorization"))
            # One key for all tells nobody from another.
            if len(self._tokens) > 1:
                return f"key {number}"
        return _network_of(scope)

    def _check_token(self, authorization: str | None) -> int:
        scheme, _, given = (authorization or "").partition(" ")
        data = given.strip().encode("utf-8", "replace")
        # All are compared, so that the time tells nothing.
        matches = [hmac.compare_digest(data, token) for token in self._tokens]
        if scheme.lower() != "bearer" or not any(matches):
            raise ApiError(
                401,
                "this server wants its token: send the header Authorization: Bearer TOKEN",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return matches.index(True)


class _BodyTooLargeError(BaseException):
    """Not an Exception: whoever reads the body may make those an answer of their own."""


class _GuardedRequest:
    """One request: what is received and sent for it passes through here."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, guards: Guards) -> None:
        self.scope = scope
        self._receive = receive
        self._send = send
        self._guards = guards
        self._connection = scope.get("state", {}).get("connection")
        self._num_bytes = 0
        self.is_answered = False
        if _header(scope, b"transfer-encoding") is None and not _header(scope, b"content-length"):
            self._tell_complete()

    async def receive(self) -> Message:
        """Counts what is received and stops where it becomes too much."""
        message = await self._receive()
        if message["type"] == "http.request":
            self._num_bytes += len(message.get("body", b""))
            if self._num_bytes > self._guards.settings.max_body_bytes:
                raise _BodyTooLargeError
            if not message.get("more_body"):
                self._tell_complete()
        return message

    async def send(self, message: Message) -> None:
        """Puts the security headers on an answer, and counts it."""
        if message["type"] == "http.response.start":
            self.is_answered = True
            self._tell_complete()
            message["headers"] = [*message.get("headers", ()), *self._guards.headers]
            self._guards.metrics.count_answer(_route_of(self.scope), message["status"])
        await self._send(message)

    async def refuse(self, error: ApiError) -> None:
        """Answer at once, then throw away a little of what is still being sent."""
        body = json.dumps(error.body()).encode()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            **{name.lower(): value for name, value in error.headers.items()},
        }
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": error.status, "headers": encoded})
        await self.send({"type": "http.response.body", "body": body, "more_body": True})
        await self._discard(_DISCARD_BODIES * self._guards.settings.max_body_bytes)
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _discard(self, max_bytes: int) -> None:
        num_bytes = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_SECONDS):
                while num_bytes <= max_bytes:
                    message = await self._receive()
                    num_bytes += len(message.get("body", b""))
                    if not message.get("more_body"):
                        return

    def _tell_complete(self) -> None:
        if self._connection is not None:
            self._connection.request_is_complete(self)

    def tell_done(self) -> None:
        if self._connection is not None:
            self._connection.request_is_done(self)


def _header(scope: Scope, name: bytes) -> str | None:
    """The value; None where the header is missing, and nothing good where it comes twice."""
    values = [value.decode("latin-1") for key, value in scope["headers"] if key == name]
    return ", ".join(values) if values else None


def too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413,
        f"the body is larger than {max_bytes} bytes: send less",
        code="body_too_large",
        headers={"Connection": "close"},
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address; a name counts if it is localhost."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_local_name(host: str | None, bound: str) -> bool:
    """Whether a Host header names this machine: a page from elsewhere may resolve to it too."""
    if host is None:
        return False
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    return is_loopback(name) or name.lower() == bound.lower()


def _is_open(scope: Scope) -> bool:
    path = scope["path"]
    return path in _OPEN_PATHS or path.startswith(_OPEN_PREFIX)


def _network_of(scope: Scope) -> str:
    """The address; of IPv6 the half that one subscriber has all addresses of."""
    host = (scope.get("client") or ("unknown", 0))[0]
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return str(host)
    if address.version == 6:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def _route_of(scope: Scope) -> str:
    """The route's own pattern, so that a monitor sees few names whatever is asked for."""
    route = scope.get("route")
    path = getattr(route, "path", None)
    return path if isinstance(path, str) else "other"
