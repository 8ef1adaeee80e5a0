"""Reading the ids of a split: `open_shards` opens its files and makes the cheap checks.

Ids are read on demand rather than memory-mapped, because a mapped file that shrinks raises SIGBUS.
"""

import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from groundup.data.shards.index import ShardEntry, ShardIndex, read_index
from groundup.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from groundup.tokenizer import Tokenizer

RESTORE = "put the file back as it was, or run groundup data prepare again with --overwrite"
"""Advice for errors about a damaged file."""


class ShardFile:
    """One open shard."""

    def __init__(self, path: Path, num_tokens: int) -> None:
        self.path = path
        self._num_tokens = num_tokens
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        return self._num_tokens

    def read_into(self, ids: npt.NDArray[Any], position: int) -> None:
        """Fill `ids` from the file, starting at the id at `position`."""
        view, offset = ids.data.cast("B"), position * ids.itemsize
        while view:
            try:
                count = os.preadv(self._file, [view], offset)
            except OSError as error:
                raise DataError(f"{self.path} cannot be read: {error.strerror}") from error
            if not count:
                raise DataError(f"{self.path} was truncated while in use; {RESTORE}")
            view, offset = view[count:], offset + count


class Shards:
    """All ids of one split as a single array; reads may cross shard boundaries."""

    def __init__(self, split: str, files: list[ShardFile], index: ShardIndex) -> None:
        self.split = split
        self.files = files
        self.index = index
        self.dtype = np.dtype(index.dtype).newbyteorder("<")
        self._begins = np.cumsum([0, *map(len, files)])
        self.num_tokens = int(self._begins[-1])

    def __len__(self) -> int:
        return self.num_tokens

    def __repr__(self) -> str:
        return f"<Shards {self.split}: {self.num_tokens:,} ids, files: {len(self.files):,}>"

    def read_windows(self, starts: npt.NDArray[np.int64], length: int) -> npt.NDArray[Any]:
        """Return the rows ids[start : start + length]; the starts must be in range."""
        rows = np.empty((len(starts), length), self.dtype)
        numbers = np.searchsorted(self._begins, starts, side="right") - 1
        positions = starts - self._begins[numbers]
        for row, number, position in zip(rows, numbers.tolist(), positions.tolist(), strict=True):
            while len(row):
                count = len(self.files[number]) - position
                self.files[number].read_into(row[:count], position)
                row, number, position = row[count:], number + 1, 0
        return rows

    def read(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Return ids[begin:end]."""
        if not 0 <= begin <= end <= self.num_tokens:
            raise IndexError(f"ids {begin} to {end} of {self.num_tokens} in split {self.split}")
        return self.read_windows(np.array([begin]), end - begin).reshape(-1)

    def __getitem__(self, key: slice) -> npt.NDArray[Any]:
        if not isinstance(key, slice):
            raise TypeError(f"index shards with a slice such as shards[5:7], not {key!r:.60}")
        begin, end, step = key.indices(self.num_tokens)
        return self.read(begin, max(begin, end))[::step]


def open_shards(
    folder: str | os.PathLike[str],
    split: str = "train",
    tokenizer: "Tokenizer | None" = None,
    index: ShardIndex | None = None,
) -> Shards:
    """Open the shards of a split; `tokenizer`, if given, must be the one that encoded them."""
    folder = Path(folder)
    index = index or read_index(folder)
    if tokenizer is not None:
        check_tokenizer(folder, index, tokenizer)
    if split not in index.splits:
        raise DataError(f"{folder} has no split {split}: {did_you_mean(split, index.splits)}")
    files = [
        ShardFile(check_shard_file(folder, shard, index.id_bytes), shard.num_tokens)
        for shard in index.splits[split].shards
    ]
    return Shards(split, files, index)


def check_tokenizer(folder: Path, index: ShardIndex, tokenizer: "Tokenizer") -> None:
    if index.tokenizer != tokenizer.id:
        raise DataError(
            f"{folder} was encoded with tokenizer {index.tokenizer}, not with {tokenizer.id}; use "
            f"the original tokenizer, or run groundup data prepare with this one"
        )
    found = index.vocab_size, index.end.id
    known = tokenizer.vocab_size, tokenizer.special_tokens.get(index.end.text)
    if found != known:
        names = f"vocab_size and the id of {index.end.text}"
        raise DataError(f"{names} are {found} in the index of {folder}, not {known}; {RESTORE}")


def check_shard_file(folder: Path, shard: ShardEntry, id_bytes: int) -> Path:
    """Return the path of a shard after checking that it exists with the size in the index."""
    path = folder / shard.file
    if Path(shard.file).name != shard.file:
        raise DataError(f"{folder}: the index names {shard.file}, which is not in the folder")
    if not path.is_file():
        raise DataError(f"{path} is missing; {RESTORE}")
    size = path.stat().st_size
    expected = shard.num_tokens * id_bytes
    if size != expected:
        raise DataError(f"{path} has {size} bytes instead of {expected} as in the index; {RESTORE}")
    return path
