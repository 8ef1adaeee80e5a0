"""Stages in threads: order is kept, errors arrive where they are waited for, nothing lingers."""

import itertools
import threading
from collections.abc import Iterator

import pytest

from groundup.data.pipeline import read_ahead


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
