"""Request bodies as JSON, in time and memory that are linear in their size.

What a megabyte of JSON can cost lies in its small parts: they are counted before any is made. A
long body is read in a thread, so that the event loop answers others meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute

# Ids in a prompt, for the most part.
MAX_ELEMENTS = 100_000
# Lists, objects and the names in objects, each of which takes up to a hundred times its text.
MAX_STRUCTURES = 10_000

_LONG_BYTES = 20_000
# One thread: several would hold Python's lock one after the other, and the event loop waits.
_reader = ThreadPoolExecutor(1, "groundup-bodies")


class JsonRoute(APIRoute):
    """A route whose body, if it takes one, is read by `read_json`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_request(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return handle_request


class _JsonRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        if len(body) < _LONG_BYTES:
            return read_json(body)
        return await asyncio.get_running_loop().run_in_executor(_reader, read_json, body)


def read_json(body: bytes) -> Any:
    """The value; a JSONDecodeError or, for what is too much to be read, an HTTPException."""
    num_elements, num_structures = _count_parts(body)
    if num_elements > MAX_ELEMENTS or num_structures > MAX_STRUCTURES:
        raise HTTPException(
            400,
            f"the body has too many parts: at most {MAX_ELEMENTS} list elements and "
            f"{MAX_STRUCTURES} lists, objects and fields are read",
        )
    try:
        return json.loads(body.decode())
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise HTTPException(
            400,
            "the body cannot be read as JSON: it must be UTF-8, not nested too deep, and without "
            "numbers of hundreds of digits",
        ) from error


def _count_parts(body: bytes) -> tuple[int, int]:
    """Elements and structures, as many as there are or more; exact where that could matter."""
    counts = _count_marks(body)
    if counts[0] <= MAX_ELEMENTS and counts[1] <= MAX_STRUCTURES:
        return counts
    # Most marks may be in the strings of a long text: where an odd number of quotes has come.
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    characters = np.frombuffer(bare, np.uint8)
    num_quotes = np.cumsum(characters == ord('"'), dtype=np.uint8)
    return _count_marks(characters[num_quotes % 2 == 0].tobytes())


def _count_marks(text: bytes) -> tuple[int, int]:
    return text.count(b","), text.count(b"[") + text.count(b"{") + text.count(b":")
