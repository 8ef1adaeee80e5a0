"""ASGI middleware for every route: authentication, Host and Origin checks, body size limits.

Pure ASGI, so that a large body is refused before it is read and streams pass through unbuffered.
It also counts responses and adds the security headers.
"""

import contextlib
import hmac
import ipaddress
import logging
import re

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from groundup.serving.api_errors import ApiError, excerpt, internal_error
from groundup.serving.metrics import Metrics
from groundup.serving.settings import ServerSettings

_log = logging.getLogger(__name__)

# Scripts, styles and connections are restricted to this origin.
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data: blob:; "
        "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    # Pages change with an upgrade of groundup, API responses at any time.
    "cache-control": "no-cache",
}

_HOST = re.compile(r"(\[[^\]]+\]|[^:\[\]]+)(?::\d*)?")
# A browser cannot send a token when it opens a page; these files contain no secrets.
_OPEN_PATHS = ("/", "/chat", "/inside", "/tokenizer", "/runs", "/health")

# nginx's status for "client closed request"; only metrics see it.
_CLIENT_CLOSED = 499
# A refused client may still be sending; closing the connection would discard the response. So up to
# this many times the largest body is read and dropped, within the request timeout.
_DISCARD_BODIES = 8


class Guards:
    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._is_local = is_loopback(settings.host)
        self._tokens = [token.get_secret_value().encode() for token in settings.tokens]
        self._headers = [(k.encode(), v.encode()) for k, v in SECURITY_HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        max_bytes = self._settings.max_body_bytes
        num_received, is_complete, is_answered = 0, False, False

        async def receive_bounded() -> Message:
            nonlocal num_received, is_complete
            message = await receive()
            num_received += len(message.get("body", b""))
            if num_received > max_bytes:
                raise _too_large(max_bytes)
            is_complete = not message.get("more_body")
            return message

        async def send_guarded(message: Message) -> None:
            nonlocal is_answered
            if message["type"] == "http.response.start":
                is_answered = True
                message["headers"] = [*message.get("headers", ()), *self._headers]
                # The route's pattern, not the path, to bound the number of labels.
                route = getattr(scope.get("route"), "path", None) or "other"
                self._metrics.answers.labels(route, str(message["status"])).inc()
            await send(message)

        try:
            scope["client_name"] = self._check(scope)
            announced = Headers(scope=scope).get("content-length", "")
            if announced.isdigit() and int(announced) > max_bytes:
                raise _too_large(max_bytes)
            await self._app(scope, receive_bounded, send_guarded)
        except ClientDisconnect:
            if not is_answered:
                await Response(status_code=_CLIENT_CLOSED)(scope, receive, send_guarded)
        except Exception as error:
            if not isinstance(error, ApiError):
                _log.exception("%s %s failed", scope["method"], excerpt(scope["path"]))
                error = internal_error()
            if is_answered:
                raise
            await self._refuse(error, None if is_complete else receive, send_guarded)

    def _check(self, scope: Scope) -> str:
        """Return the client's name, its key or else its address; raise ApiError if refused."""
        headers = Headers(scope=scope)
        if "transfer-encoding" in headers and "content-length" in headers:
            # A proxy may disagree with this server on where the body ends (request smuggling).
            raise ApiError(
                400,
                "Content-Length and Transfer-Encoding contradict each other: send one of them",
                code="invalid_http",
                headers={"Connection": "close"},
            )
        host, origins = headers.get("host", ""), headers.getlist("origin")
        found = _HOST.fullmatch(host)
        known = [name.lower() for name in (self._settings.host, self._settings.public_host) if name]
        # Against DNS rebinding: a foreign name may resolve to this machine.
        is_known = found and (is_loopback(found[1]) or found[1].lower() in known)
        if self._is_local and not is_known:
            raise ApiError(
                403,
                f"the Host header is {excerpt(host)}, but this server accepts only names of this "
                f"machine: use http://127.0.0.1, http://localhost or --public-host",
                code="foreign_host",
            )
        if any(one.partition("://")[2].lower() != host.lower() for one in origins):
            message = f"pages from {excerpt(', '.join(origins))} may not use this server"
            raise ApiError(403, message, code="foreign_origin")
        path = scope["path"]
        if self._tokens and path not in _OPEN_PATHS and not path.startswith("/static/"):
            number = self._check_token(", ".join(headers.getlist("authorization")))
            # With a single key, clients are told apart by address.
            if len(self._tokens) > 1:
                return f"key {number}"
        return network_of(str((scope.get("client") or ("unknown", 0))[0]))

    def _check_token(self, authorization: str) -> int:
        scheme, _, given = authorization.partition(" ")
        data = given.strip().encode("utf-8", "replace")
        # Compare all of them: constant time.
        matches = [hmac.compare_digest(data, token) for token in self._tokens]
        if scheme.lower() != "bearer" or not any(matches):
            raise ApiError(
                401,
                "this server requires a token: send the header Authorization: Bearer TOKEN",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return matches.index(True)

    async def _refuse(self, error: ApiError, receive: Receive | None, send: Send) -> None:
        """Respond at once, then discard some of the body that is still being sent, if any."""
        response = error.response()
        start = {"type": "http.response.start", "status": error.status}
        await send({**start, "headers": response.raw_headers})
        await send({"type": "http.response.body", "body": response.body, "more_body": True})
        num_left = _DISCARD_BODIES * self._settings.max_body_bytes
        while receive is not None and num_left >= 0:
            message = await receive()
            num_left -= len(message.get("body", b""))
            if not message.get("more_body"):
                break
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def is_loopback(host: str) -> bool:
    """Whether an address is reachable only from this machine; the only such name is localhost."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host.lower() == "localhost"


def _too_large(max_bytes: int) -> ApiError:
    message = f"the body is larger than {max_bytes} bytes: send less"
    return ApiError(413, message, code="body_too_large", headers={"Connection": "close"})


def network_of(address: str) -> str:
    """Return the address, or the /64 network of an IPv6 address: one subscriber has all of it."""
    address = address.removeprefix("::ffff:")  # An IPv4 client of a socket for both.
    with contextlib.suppress(ValueError):
        address = str(ipaddress.IPv6Network((address.partition("%")[0], 64), strict=False))
    return address
