"""The ids of a split: `open_shards` opens its files and reads what is asked for.

Opening checks what is cheap. Ids are read when they are asked for, and not mapped: a mapped file
that shrinks is a bus error.
"""

import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from groundup.data.shards.index import ShardEntry, ShardIndex, read_index
from groundup.errors import DataError, did_you_mean
from groundup.runtime import count_of

if TYPE_CHECKING:
    from groundup.tokenizer import Tokenizer

RESTORE = "put the file back as it was, or run groundup data prepare again with --overwrite"
"""What to do about a damaged file."""


class ShardFile:
    """The ids in one open file."""

    def __init__(self, path: Path, dtype: np.dtype[Any], num_ids: int) -> None:
        self.path = path
        self.dtype = dtype
        self._num_ids = num_ids
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        return self._num_ids

    def read_windows(self, starts: npt.NDArray[np.int64], length: int) -> npt.NDArray[Any]:
        """The rows ids[start : start + length], as (count, length)."""
        rows = np.empty((len(starts), length), self.dtype)
        for row, offset in zip(rows, (starts * self.dtype.itemsize).tolist(), strict=True):
            view = memoryview(row).cast("B")
            while view:
                try:
                    count = os.preadv(self._file, [view], offset)
                except OSError as error:
                    raise DataError(f"{self.path} cannot be read: {error.strerror}") from error
                if not count:
                    raise DataError(f"{self.path} became shorter while it was in use; {RESTORE}")
                view, offset = view[count:], offset + count
        return rows


class Shards:
    """The ids of one split as one long array; what is read may cross from shard to shard."""

    def __init__(self, split: str, files: list[ShardFile], index: ShardIndex) -> None:
        self.split = split
        self.files = files
        self.index = index
        self.dtype = np.dtype(index.dtype).newbyteorder("<")
        self._begins = np.cumsum([0, *map(len, files)])

    @property
    def num_ids(self) -> int:
        return int(self._begins[-1])

    def __len__(self) -> int:
        return self.num_ids

    def read_windows(self, starts: npt.NDArray[np.int64], length: int) -> npt.NDArray[Any]:
        """The rows ids[start : start + length], as (count, length), for starts that all exist."""
        if len(self.files) == 1:
            return self.files[0].read_windows(starts, length)
        rows = np.empty((len(starts), length), self.dtype)
        numbers = np.searchsorted(self._begins, starts, side="right") - 1
        is_inside = starts + length <= self._begins[numbers + 1]
        for number in np.unique(numbers[is_inside]):
            here = np.flatnonzero(is_inside & (numbers == number))
            offsets = starts[here] - self._begins[number]
            rows[here] = self.files[number].read_windows(offsets, length)
        for row in np.flatnonzero(~is_inside):
            filled = 0
            while filled < length:
                file, offset = self.locate(int(starts[row]) + filled)
                count = min(length - filled, len(file) - offset)
                part = file.read_windows(np.array([offset]), count)
                rows[row, filled : filled + count] = part[0]
                filled += count
        return rows

    def read(self, begin: int, end: int) -> npt.NDArray[Any]:
        """The ids from `begin` up to `end`."""
        if not 0 <= begin <= end <= self.num_ids:
            raise IndexError(f"ids {begin} to {end} of {self.num_ids} in split {self.split}")
        if begin == end:
            return np.empty(0, self.dtype)
        return self.read_windows(np.array([begin]), end - begin).reshape(-1)

    def locate(self, position: int) -> tuple[ShardFile, int]:
        """The file that holds the id at a position, and the id's position in it."""
        number = int(np.searchsorted(self._begins, position, side="right")) - 1
        return self.files[number], position - int(self._begins[number])

    @overload
    def __getitem__(self, key: int) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> npt.NDArray[Any]: ...
    def __getitem__(self, key: int | slice) -> int | npt.NDArray[Any]:
        if isinstance(key, slice):
            begin, end, step = key.indices(self.num_ids)
            if step < 1:
                raise IndexError(f"a slice of shards goes forward; its step is {step}")
            return self.read(begin, max(begin, end))[::step]
        position = key + self.num_ids if key < 0 else key
        if not 0 <= position < self.num_ids:
            raise IndexError(f"id {key} of {self.num_ids} in split {self.split}")
        return int(self.read(position, position + 1)[0])

    def __repr__(self) -> str:
        return f"Shards({self.split}: {self.num_ids} ids in {count_of(len(self.files), 'shard')})"


def open_shards(
    folder: str | os.PathLike[str],
    split: str = "train",
    tokenizer: "Tokenizer | None" = None,
    index: ShardIndex | None = None,
) -> Shards:
    """Open the shards of a split; with `tokenizer`, make sure that it is the one they came from.

    `index` is the folder's, where it has been read already.
    """
    folder = Path(folder)
    index = index or read_index(folder)
    if tokenizer is not None:
        check_tokenizer(folder, index, tokenizer)
    if split not in index.splits:
        raise DataError(f"{folder} has no split {split}: {did_you_mean(split, index.splits)}")
    shards = index.splits[split].shards
    return Shards(split, [_open(folder, shard, index) for shard in shards], index)


def check_tokenizer(folder: Path, index: ShardIndex, tokenizer: "Tokenizer") -> None:
    if index.tokenizer != tokenizer.id:
        raise DataError(
            f"{folder} was encoded with tokenizer {index.tokenizer}, not with {tokenizer.id}; give "
            f"the tokenizer it was made with, or run groundup data prepare with this one"
        )


def check_shard_file(folder: Path, shard: ShardEntry, id_bytes: int) -> Path:
    """The path of a shard that is there and as long as the index says."""
    path = folder / shard.file
    if Path(shard.file).name != shard.file:
        raise DataError(f"{folder}: the index names {shard.file}, which is not in the folder")
    if not path.is_file():
        raise DataError(f"{path} is missing; {RESTORE}")
    size = path.stat().st_size
    expected = shard.num_ids * id_bytes
    if size != expected:
        raise DataError(f"{path} has {size} bytes where the index says {expected}; {RESTORE}")
    return path


def _open(folder: Path, shard: ShardEntry, index: ShardIndex) -> ShardFile:
    path = check_shard_file(folder, shard, index.id_bytes)
    if shard.num_ids == 0:
        raise DataError(f"{folder}: the index names an empty shard, {shard.file}; it is damaged")
    return ShardFile(path, np.dtype(index.dtype).newbyteorder("<"), shard.num_ids)
