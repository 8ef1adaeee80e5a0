"""Windows of ids out of shards or arrays, many at a time: a gather of rows that may cross shards.

Where the windows begin is `order`'s affair, what becomes of them `loader`'s.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from groundup.data.order import check_window
from groundup.data.shards import ShardFile, Shards
from groundup.errors import DataError

Ids = Shards | npt.NDArray[Any]


def read_windows(ids: Ids, starts: npt.ArrayLike, context_length: int) -> npt.NDArray[np.int64]:
    """The rows ids[start : start + context_length + 1], as (count, context_length + 1)."""
    return WindowReader(ids, context_length).read(starts).astype(np.int64)


class WindowReader:
    """Reads windows of context_length + 1 ids; ids of shards stay on disk until then."""

    def __init__(self, ids: Ids, context_length: int) -> None:
        self._parts: Sequence[ShardFile | _Array]
        self._parts = ids.files if isinstance(ids, Shards) else [_Array(ids)]
        self._begins = np.cumsum([0, *map(len, self._parts)])
        self.num_ids = int(self._begins[-1])
        check_window(self.num_ids, context_length)
        self.length = context_length + 1

    def read(self, starts: npt.ArrayLike) -> npt.NDArray[Any]:
        """The windows as rows, in the order of `starts`, with the type that the ids have."""
        places = np.asarray(starts, np.int64)
        last = self.num_ids - self.length
        if len(places) and (places.min() < 0 or places.max() > last):
            raise IndexError(
                f"windows of {self.length} ids begin at 0 to {last}, not at {places.min()} to "
                f"{places.max()}"
            )
        if len(self._parts) == 1:
            return self._parts[0].read_windows(places, self.length)
        return self._read_over_shards(places)

    def _read_over_shards(self, places: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        rows = np.empty((len(places), self.length), self._parts[0].dtype)
        shards = np.searchsorted(self._begins, places, side="right") - 1
        is_inside = places + self.length <= self._begins[shards + 1]
        for shard in np.unique(shards[is_inside]):
            here = np.flatnonzero(is_inside & (shards == shard))
            starts = places[here] - self._begins[shard]
            rows[here] = self._parts[shard].read_windows(starts, self.length)
        for row in np.flatnonzero(~is_inside):
            self._read_across(rows[row], int(places[row]), int(shards[row]))
        return rows

    def _read_across(self, row: npt.NDArray[Any], place: int, shard: int) -> None:
        filled = 0
        while filled < self.length:
            offset = place + filled - int(self._begins[shard])
            end = min(offset + self.length - filled, len(self._parts[shard]))
            part = self._parts[shard].read_windows(np.array([offset]), end - offset)
            row[filled : filled + end - offset] = part[0]
            filled += end - offset
            shard += 1


class _Array:
    """Ids in memory, or in a mapped file of the caller's, behind the face of a shard file."""

    def __init__(self, ids: npt.ArrayLike) -> None:
        self._ids = _as_ids(ids)
        self.dtype = self._ids.dtype

    def __len__(self) -> int:
        return len(self._ids)

    def read_windows(self, starts: npt.NDArray[np.int64], length: int) -> npt.NDArray[Any]:
        return sliding_window_view(self._ids, length)[starts]


def _as_ids(ids: npt.ArrayLike) -> npt.NDArray[Any]:
    # As a plain array: the memmap subclass would look after every slice of itself.
    array = np.asarray(ids)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(
            f"ids must be a one-dimensional array of integers, not {array.ndim}-dimensional "
            f"{array.dtype}; give an array, a memory-mapped file or what open_shards returns"
        )
    return array
