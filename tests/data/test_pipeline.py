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
def test_items_arrive_in_order_and_an_error_after_those_before_it(depth: int) -> None:
    with read_ahead(failing(20), depth) as items:
        assert [next(items) for _ in range(20)] == list(range(20))
        with pytest.raises(ValueError, match="worn out"):
            next(items)


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
