"""Stages of work that overlap: something read ahead in a thread, something done behind in another.

Queues are bounded, so a slow stage holds the others back; an error in a stage is raised to the
one that waits for it. The work itself should release the interpreter's lock.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

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


class WriteBehind(Generic[Item]):
    """Calls `function` in a thread on what is `put`, in order, at most `depth` items behind.

    After an error nothing more is done, and the next `put` or `finish` raises it.
    """

    def __init__(self, function: Callable[[Item], None], depth: int) -> None:
        self._function = function
        self._waiting: queue.Queue[Item | _End] = queue.Queue(depth)
        self.error: BaseException | None = None
        # Waited for before join, which, interrupted by Ctrl-C, takes a running thread for a
        # finished one.
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="write behind", daemon=True)
        self._thread.start()

    def put(self, item: Item) -> None:
        self._raise()
        self._waiting.put(item)

    def finish(self) -> None:
        """Wait until all is done."""
        self.close()
        self._raise()

    def close(self) -> None:
        """The same without raising what went wrong."""
        if not self._is_over.is_set():
            self._waiting.put(_End())
            self._is_over.wait()
            self._thread.join()

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error

    def _work(self) -> None:
        try:
            while not isinstance(item := self._waiting.get(), _End):
                if self.error is None:
                    self._do(item)
        finally:
            self._is_over.set()

    def _do(self, item: Item) -> None:
        try:
            self._function(item)
        except BaseException as error:
            self.error = error
