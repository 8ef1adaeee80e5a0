"""Stages in threads: order is kept, errors arrive where they are waited for, nothing lingers."""

import itertools
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from groundup.data.pipeline import WriteBehind, read_ahead


def failing(count: int) -> Iterator[int]:
    yield from range(count)
    raise ValueError("worn out")


@pytest.mark.parametrize("depth", [1, 3])
def test_items_arrive_in_order(depth: int) -> None:
    with read_ahead(range(100), depth) as items:
        assert list(items) == list(range(100))


def test_an_error_arrives_after_the_items_before_it() -> None:
    taken = []
    with pytest.raises(ValueError, match="worn out"), read_ahead(failing(5), 2) as items:
        for item in items:
            taken.append(item)
    assert taken == list(range(5))


def test_reading_ahead_is_bounded() -> None:
    asked: list[int] = []
    with read_ahead(map(asked.append, itertools.count()), 2) as items:
        next(items)
    assert len(asked) <= 5


def test_leaving_early_ends_the_thread() -> None:
    before = threading.active_count()
    with pytest.raises(KeyError), read_ahead(itertools.count(), 2) as items:
        next(items)
        raise KeyError
    assert threading.active_count() == before


def test_work_behind_is_done_in_order_and_waited_for() -> None:
    done: list[int] = []
    behind = WriteBehind(done.append, 2)
    for number in range(50):
        behind.put(number)
    behind.finish()
    assert done == list(range(50))


def test_an_error_behind_stops_the_work_and_is_raised() -> None:
    done = []

    def work(number: int) -> None:
        if number == 3:
            raise OSError("full")
        done.append(number)

    behind = WriteBehind(work, 1)
    with pytest.raises(OSError, match="full"):
        for number in range(50):
            behind.put(number)
    behind.close()
    with pytest.raises(OSError, match="full"):
        behind.finish()
    assert done == [0, 1, 2]


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt here, whatever started the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_soon() -> None:
    threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGINT]).start()


@pytest.mark.usefixtures("interrupts")
def test_after_an_interrupted_finish_close_still_waits_for_the_work() -> None:
    may_go_on = threading.Event()
    done = []

    def work(item: int) -> None:
        may_go_on.wait()
        done.append(item)

    behind = WriteBehind(work, 4)
    for item in range(3):
        behind.put(item)
    with pytest.raises(KeyboardInterrupt):
        interrupt_soon()
        behind.finish()
    threading.Timer(0.05, may_go_on.set).start()
    behind.close()
    assert done == [0, 1, 2]
