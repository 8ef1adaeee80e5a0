"""Errors as OpenAI's clients expect them: a status and {"error": {message, type, param, code}}.

Every error response has this shape.
"""

import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
# The types that a union field accepts, in place of pydantic's error for each member.
_SHAPES = {
    "prompt": "it must be a string, a list of strings, a list of token ids or a list of such lists",
    "stop": "it must be a string or a list of at most 16 strings of 1 to 1000 characters",
}


@dataclass(eq=False)
class ApiError(Exception):
    """An error response: its status and the message for the client."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] | None = None

    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "invalid_request_error")
        detail = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": detail}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, self.headers)


def internal_error() -> ApiError:
    """A 500 that does not reveal the cause, which is only logged."""
    message = "the server failed to answer this request: see its log"
    return ApiError(500, message, code="internal_error")


def invalid_request(error: ValidationError) -> ApiError:
    """Describe pydantic's first error in a body or a query in one sentence."""
    finding = error.errors(include_url=False, include_context=False)[0]
    kind, reason = finding["type"], finding["msg"].removeprefix("Value error, ")
    if kind == "json_invalid":
        return ApiError(400, f"the body is not valid JSON: {reason.partition(': ')[2]}")
    if not finding["loc"]:
        # Contradicting fields: the message begins with the name of one.
        return ApiError(400, reason, param=reason.partition(" ")[0])
    field = str(finding["loc"][0]).encode("ascii", "backslashreplace").decode()[:60]
    reason = _SHAPES.get(field) or reason[:1].lower() + reason[1:]
    return ApiError(400, f"{field} is {excerpt(finding['input'])}, but {reason}", param=field)


def answer_http_exception(request: Request, error: Exception) -> JSONResponse:
    """Convert Starlette's own errors: an unknown path, a method not allowed."""
    assert isinstance(error, HTTPException)
    message = f"{excerpt(request.method)} {excerpt(request.url.path)}: {error.detail}"
    return ApiError(error.status_code, message, headers=error.headers).response()


def excerpt(value: object) -> str:
    """Shorten an untrusted value and make it printable; plain names are unchanged."""
    if isinstance(value, str) and len(value) <= 60 and re.fullmatch(r"[\w./-]+", value, re.ASCII):
        return value
    return reprlib.repr(value)[:60].encode("ascii", "backslashreplace").decode()
