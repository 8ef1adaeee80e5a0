"""Parse request bodies into pydantic models, in time and memory linear in their size.

JSON with many small elements takes far more memory than its text, so they are counted before
parsing.
"""

from typing import TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request

from groundup.serving.api_errors import ApiError, invalid_request

# Mostly the ids of a prompt.
MAX_ELEMENTS = 100_000
# Lists, objects and keys; each takes up to a hundred times the memory of its text.
MAX_STRUCTURES = 10_000


class Body(BaseModel):
    """A request body. Types are strict ("5" is not a number); unknown fields are errors."""

    model_config = ConfigDict(strict=True, extra="forbid")


AnyBody = TypeVar("AnyBody", bound=Body)


async def read_body(request: Request, model: type[AnyBody]) -> AnyBody:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise ApiError(400, "the body must be JSON, sent with content-type application/json")
    return parse_body(await request.body(), model)


def parse_body(body: bytes, model: type[AnyBody]) -> AnyBody:
    num_elements, num_structures = _count_parts(body)
    if num_elements > MAX_ELEMENTS or num_structures > MAX_STRUCTURES:
        raise ApiError(
            400,
            f"the body has too many elements: send at most {MAX_ELEMENTS} list elements and "
            f"{MAX_STRUCTURES} lists, objects and fields",
        )
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise invalid_request(error) from None


def _count_parts(body: bytes) -> tuple[int, int]:
    """Count elements and structures; may overestimate as long as both are below the limits."""
    counts = _count_marks(body)
    if counts[0] <= MAX_ELEMENTS and counts[1] <= MAX_STRUCTURES:
        return counts
    # Ignore marks inside strings, that is, after an odd number of quotes.
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    characters = np.frombuffer(bare, np.uint8)
    num_quotes = np.cumsum(characters == ord('"'), dtype=np.uint8)
    return _count_marks(characters[num_quotes % 2 == 0].tobytes())


def _count_marks(text: bytes) -> tuple[int, int]:
    return text.count(b","), text.count(b"[") + text.count(b"{") + text.count(b":")
