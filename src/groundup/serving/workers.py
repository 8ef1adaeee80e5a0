"""Run the CPU work of requests in threads: one task per client and kind at a time, with a deadline.

Each task takes time linear in its request. A client with many tasks delays only itself.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeVar, get_args
from weakref import WeakValueDictionary

from groundup.serving.api_errors import ApiError

Kind = Literal["text", "template", "answer", "view"]
Result = TypeVar("Result")

# Threads per kind of work. More would keep the GIL from the event loop; separate pools keep slow
# templates and long responses from delaying the rest.
_NUM_THREADS = 2


class Workers:
    """The thread pools of one server. Used in its event loop."""

    def __init__(self, seconds: float) -> None:
        """`seconds` is the deadline of a task, including its wait for a thread."""
        self._seconds = seconds
        self._pools = {
            kind: ThreadPoolExecutor(_NUM_THREADS, f"groundup-{kind}") for kind in get_args(Kind)
        }
        self._locks: WeakValueDictionary[tuple[Kind, str], asyncio.Lock] = WeakValueDictionary()

    async def run(self, kind: Kind, client: str, function: Callable[[], Result]) -> Result:
        """Return the function's result; raise ApiError after the deadline."""
        lock = self._locks.setdefault((kind, client), asyncio.Lock())
        try:
            async with asyncio.timeout(self._seconds) as deadline, lock:
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
