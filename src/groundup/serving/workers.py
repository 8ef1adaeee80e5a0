"""CPU work of requests: beside the event loop, a client's pieces in turn, with a deadline.

All of it takes time linear in the request. Whoever sends much of it waits for that alone.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeVar, get_args
from weakref import WeakValueDictionary

from groundup.serving.api_errors import ApiError

Kind = Literal["text", "template", "answer", "view"]
Result = TypeVar("Result")

# More threads would keep Python's lock from the event loop. Each kind has its own, so that slow
# templates and long answers delay nothing else.
_NUM_THREADS = 2


class Workers:
    """The threads of one server. Used in its event loop."""

    def __init__(self, seconds: float) -> None:
        """`seconds` is the deadline, with the time that a piece of work waits for its turn."""
        self._seconds = seconds
        self._pools = {
            kind: ThreadPoolExecutor(_NUM_THREADS, f"groundup-{kind}") for kind in get_args(Kind)
        }
        self._turns: WeakValueDictionary[tuple[Kind, str], asyncio.Lock] = WeakValueDictionary()

    async def run(self, kind: Kind, client: str, function: Callable[[], Result]) -> Result:
        """What the function returns or raises; an ApiError if that takes too long."""
        turn = self._turns.setdefault((kind, client), asyncio.Lock())
        try:
            async with asyncio.timeout(self._seconds) as deadline, turn:
                return await asyncio.get_running_loop().run_in_executor(self._pools[kind], function)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise ApiError(
                503,
                f"the request took more than {self._seconds:g} s of work before or after the "
                f"model: shorten it, or try again later",
                code="deadline_exceeded",
                headers={"Retry-After": "5"},
            ) from None

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
