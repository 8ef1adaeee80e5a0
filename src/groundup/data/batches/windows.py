"""Windows of ids out of shards or arrays, many at a time.

Where the windows begin is left to `order`, what becomes of them to `loader`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from groundup.data.batches.order import check_window
from groundup.data.shards.reading import Shards
from groundup.errors import DataError


class IdArray:
    """Ids in memory, or in a mapped file of the caller's, read as those of shards are."""

    def __init__(self, ids: npt.ArrayLike) -> None:
        # As a plain array: the memmap subclass would look after every slice of itself.
        self._ids = np.asarray(ids)
        self.num_ids = self._ids.size
        if self._ids.ndim != 1 or self._ids.dtype.kind not in "iu":
            found = f"{self._ids.ndim}-dimensional {self._ids.dtype}"
            raise DataError(f"ids must be a one-dimensional array of integers, not {found}")

    def read(self, begin: int, end: int) -> npt.NDArray[Any]:
        """The ids from `begin` up to `end`."""
        return self._ids[begin:end]

    def read_windows(self, starts: npt.NDArray[np.int64], length: int) -> npt.NDArray[Any]:
        """The rows ids[start : start + length]."""
        return sliding_window_view(self._ids, length)[starts]


Ids = Shards | IdArray | npt.NDArray[Any]


class WindowReader:
    """Reads windows of context_length + 1 ids; ids of shards stay on disk until then."""

    num_parts = 2
    """Inputs and targets."""

    def __init__(self, ids: Ids, context_length: int) -> None:
        self._ids = ids if isinstance(ids, Shards | IdArray) else IdArray(ids)
        self.num_ids = self._ids.num_ids
        check_window(self.num_ids, context_length)
        self.length = context_length + 1

    def read(self, starts: npt.ArrayLike) -> npt.NDArray[Any]:
        """The rows ids[start : start + length], in the order of `starts`, as the ids' type."""
        return self._ids.read_windows(np.asarray(starts, np.int64), self.length)

    def fill(self, target: npt.NDArray[np.int64], starts: npt.ArrayLike) -> None:
        """Write inputs and targets to `target`, (2, windows, context_length)."""
        windows = self.read(starts)
        target[0] = windows[:, :-1]
        target[1] = windows[:, 1:]


def join_shards(parts: Sequence[Shards]) -> Shards:
    """The same split of several folders as one, in their order; a window must not cross."""
    first = parts[0]
    for part in parts[1:]:
        if part.index.end != first.index.end:
            raise DataError(
                f"documents end with {first.index.end.text} in one folder of the mix and with "
                f"{part.index.end.text} in another; prepare them with the same --separator"
            )
    return Shards(first.split, [file for part in parts for file in part.files], first.index)
