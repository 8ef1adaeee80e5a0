"""A queue in which clients take turns: who asks for much waits for his own requests alone."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Items of many clients; those of one leave in the order they came."""

    def __init__(self) -> None:
        # The client whose turn is longest ago comes first.
        self._items: dict[str, collections.deque[Item]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._items.values()))

    def __iter__(self) -> Iterator[Item]:
        for items in self._items.values():
            yield from items

    def count(self, client: str) -> int:
        return len(self._items.get(client, ()))

    def push(self, client: str, item: Item) -> None:
        self._items.setdefault(client, collections.deque()).append(item)

    def next_client(self, held: Mapping[str, int], limit: int) -> str | None:
        """Of those that wait and hold less than the limit, the one that holds the least."""
        waiting = (client for client in self._items if held.get(client, 0) < limit)
        return min(waiting, key=lambda client: held.get(client, 0), default=None)

    def first(self, client: str) -> Item:
        return self._items[client][0]

    def pop(self, client: str) -> Item:
        """A client's first item; its next turn comes after those of all who wait now."""
        items = self._items.pop(client)
        item = items.popleft()
        if items:
            self._items[client] = items
        return item

    def remove(self, client: str, item: Item) -> bool:
        """Take an item out, if it is there."""
        items = self._items.get(client)
        if items is None or item not in items:
            return False
        items.remove(item)
        if not items:
            del self._items[client]
        return True

    def clear(self) -> None:
        self._items.clear()
