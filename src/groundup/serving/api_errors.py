"""Errors as OpenAI's clients expect them: a status and {"error": {message, type, param, code}}.

Every answer that is not a success has this shape, whoever gives it.
"""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from groundup.serving.protocol import OUT_OF_BOUNDS, SHAPES, ErrorAnswer, ErrorDetail

_log = logging.getLogger(__name__)

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
INTERNAL_ERROR = "the server failed to answer this request: its log says why"


class ApiError(Exception):
    """An answer other than success: its status and what to tell the client."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        detail = ErrorDetail(
            message=self.message,
            type=_TYPES.get(self.status, "invalid_request_error"),
            param=self.param,
            code=self.code,
        )
        return ErrorAnswer(error=detail).model_dump()

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, self.headers)


def internal_error() -> ApiError:
    """Says nothing of what happened: that is for the log alone."""
    return ApiError(500, INTERNAL_ERROR, code="internal_error")


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The description of errors that a route may answer with."""
    return {status: {"model": ErrorAnswer, "description": _MEANINGS[status]} for status in statuses}


def register_error_handlers(app: FastAPI) -> None:
    """Give every refusal of a route its shape; what nobody expected is the guards' matter."""
    app.add_exception_handler(ApiError, _answer_api_error)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_exception_handler(RequestValidationError, _answer_invalid_request)


def _answer_api_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return error.response()


def _answer_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    message = str(error.detail)
    if error.status_code == 404 and message == "Not Found":
        message = f"{excerpt(request.url.path)} does not exist here{_what_exists(request)}"
    if error.status_code == 405:
        message = f"{excerpt(request.url.path)} cannot be asked by {excerpt(request.method)}"
    return ApiError(error.status_code, message, headers=error.headers).response()


def _what_exists(request: Request) -> str:
    """The tail of a 404 under /v1: what there is instead."""
    if not request.url.path.startswith("/v1/"):
        return ""
    paths = {getattr(route, "path", "") for route in request.app.routes}
    return f": this server has {', '.join(sorted(p for p in paths if p.startswith('/v1/')))}"


def _answer_invalid_request(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    message, param = describe_findings(error.errors())
    return ApiError(400, message, param=param).response()


def describe_findings(findings: Sequence[Any]) -> tuple[str, str | None]:
    """The first thing wrong with a body: in words, and the name of the field if it has one."""
    finding = findings[0]
    location = [part for part in finding["loc"][1:] if isinstance(part, str | int)]
    if finding["type"] == "json_invalid":
        reason = finding.get("ctx", {}).get("error", "")
        return (
            f"the body is not valid JSON: {reason} at character {location[0] if location else 0}",
            None,
        )
    if not location:
        return "the body must be a JSON object, sent with content-type application/json", None
    field = str(location[0]).encode("ascii", "backslashreplace").decode()[:60]
    if finding["type"] == "extra_forbidden":
        return f"unknown field {excerpt(field)}: it is not part of this API", field
    if finding["type"] == "missing":
        return f"{field} is missing: it must be given", field
    if finding["type"] == OUT_OF_BOUNDS:
        return finding["msg"], field
    reason = SHAPES.get(field) or finding["msg"].removeprefix("Value error, ")
    reason = reason[:1].lower() + reason[1:]
    return f"{field} is {excerpt(finding['input'])}, but {reason}", field


def excerpt(value: object) -> str:
    """A value from outside, short and printable; text that is a plain name stays as it is."""
    if isinstance(value, str) and value.isascii() and value.isprintable() and len(value) <= 60:
        return value if "/" in value or value.isidentifier() else repr(value)
    text = _short.repr(value)
    text = text if len(text) <= 60 else text[:57] + "..."
    return text.encode("ascii", "backslashreplace").decode()


# A hundred thousand elements are not written out for the sake of the first few.
_short = reprlib.Repr()
_short.maxlist = _short.maxdict = _short.maxlevel = 20
_short.maxstring = _short.maxlong = _short.maxother = 200

_MEANINGS = {
    400: "The request cannot be granted; the message says why.",
    401: "The bearer token is missing or wrong.",
    403: "The Host or Origin header is not one of this server's own.",
    404: "It does not exist here.",
    405: "The path does not take this method.",
    413: "The body is larger than this server reads.",
    429: "Too many are waiting; Retry-After says in how many seconds to come again.",
    500: "The server failed; its log says why.",
    503: "The server is stopping.",
}
