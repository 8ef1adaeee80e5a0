"""Stages of work that overlap: each reads ahead from the one before, in a thread of its own.

Queues are bounded, so a slow stage holds the others back; an error in a stage is raised to the
one that waits for it. The work itself should release the interpreter's lock.
"""

import contextlib
import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

_POLL_SECONDS = 0.05


class _End:
    """Comes last through a queue, with what went wrong, if anything."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


@contextlib.contextmanager
def read_ahead(items: Iterable[Item], depth: int) -> Iterator[Iterator[Item]]:
    """Yield an iterator over `items` that keeps up to `depth` of them ready.

    An exception of `items` arrives in its turn. Leaving the block stops the thread.
    """
    ready: queue.Queue[Item | _End] = queue.Queue(depth)
    stopped, is_over = threading.Event(), threading.Event()

    def put(item: Item | _End) -> bool:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                ready.put(item, timeout=_POLL_SECONDS)
                return True
        return False

    def work() -> None:
        try:
            for item in items:
                if not put(item):
                    return
            put(_End())
        except BaseException as error:
            put(_End(error))
        finally:
            is_over.set()

    def take() -> Iterator[Item]:
        while not isinstance(item := ready.get(), _End):
            yield item
        if item.error is not None:
            raise item.error

    thread = threading.Thread(target=work, name="read ahead", daemon=True)
    thread.start()
    try:
        yield take()
    finally:
        stopped.set()
        if threading.current_thread() is not thread:
            is_over.wait()
        thread.join()
