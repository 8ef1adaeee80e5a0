"""Pipelines: each stage runs in its own thread and prefetches from the stage before.

Stages overlap as far as their work releases the GIL.
"""

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")

_END: Any = object()


@contextlib.contextmanager
def read_ahead(items: Iterable[Item], depth: int) -> Iterator[Iterator[Item]]:
    """Yield an iterator over `items` that prefetches up to `depth` of them.

    An exception in `items` is raised in its turn. Leaving the block ends the thread.
    """
    source = iter(items)
    with ThreadPoolExecutor(1, "read ahead") as thread:
        ready: deque[Future[Item]] = deque()

        def ask() -> None:
            ready.append(thread.submit(next, source, _END))

        def take() -> Iterator[Item]:
            while (item := ready.popleft().result()) is not _END:
                ask()
                yield item

        for _ in range(depth):
            ask()
        try:
            yield take()
        finally:
            thread.shutdown(wait=False, cancel_futures=True)
