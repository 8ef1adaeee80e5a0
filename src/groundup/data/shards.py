"""Encoded corpora on disk, as arrays: `open_shards` maps the files of one split.

A folder holds `train_000000.bin`, `validation_000000.bin` and so on, raw little-endian ids, and
`index.json` (see `shard_index`). Opening checks what is cheap; `verify` checks every byte.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from groundup.data.shard_index import ShardEntry, ShardIndex, read_index
from groundup.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from groundup.tokenizer import Tokenizer


class Shards:
    """The ids of one split as one long array; a slice may cross from shard to shard."""

    def __init__(self, split: str, arrays: list[npt.NDArray[Any]], index: ShardIndex) -> None:
        self.split = split
        self.arrays = arrays
        self.index = index
        self.dtype = np.dtype(index.dtype).newbyteorder("<")
        self._begins = np.cumsum([0, *map(len, arrays)])

    @property
    def num_ids(self) -> int:
        return int(self._begins[-1])

    def read(self, begin: int, end: int) -> npt.NDArray[Any]:
        """The ids from `begin` up to `end`; no copy is made while they lie in one shard."""
        if not 0 <= begin <= end <= self.num_ids:
            raise IndexError(f"ids {begin} to {end} of {self.num_ids} in split {self.split}")
        first = int(np.searchsorted(self._begins, begin, side="right")) - 1
        parts = []
        while begin < end:
            offset = int(self._begins[first])
            array = self.arrays[first]
            parts.append(array[begin - offset : end - offset])
            begin += len(parts[-1])
            first += 1
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, self.dtype)

    def __len__(self) -> int:
        return self.num_ids

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> npt.NDArray[Any]: ...
    def __getitem__(self, place: int | slice) -> int | npt.NDArray[Any]:
        if isinstance(place, slice):
            begin, end, step = place.indices(self.num_ids)
            if step < 1:
                raise IndexError(f"a slice of shards goes forward; its step is {step}")
            return self.read(begin, max(begin, end))[::step]
        number = place + self.num_ids if place < 0 else place
        if not 0 <= number < self.num_ids:
            raise IndexError(f"id {place} of {self.num_ids} in split {self.split}")
        return int(self.read(number, number + 1)[0])

    def __repr__(self) -> str:
        return f"Shards({self.split}: {self.num_ids} ids in {len(self.arrays)} shards)"


def open_shards(
    folder: str | os.PathLike[str], split: str = "train", tokenizer: "Tokenizer | None" = None
) -> Shards:
    """Map the shards of a split; with `tokenizer`, make sure that it is the one they came from."""
    folder = Path(folder)
    index = read_index(folder)
    if tokenizer is not None:
        check_tokenizer(folder, index, tokenizer)
    if split not in index.splits:
        raise DataError(f"{folder} has no split {split}: {did_you_mean(split, index.splits)}")
    shards = index.splits[split].shards
    return Shards(split, [_map(folder, shard, index) for shard in shards], index)


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
        raise DataError(
            f"{path} is missing; put it back, or run groundup data prepare again with --overwrite"
        )
    size = path.stat().st_size
    expected = shard.num_ids * id_bytes
    if size != expected:
        raise DataError(
            f"{path} has {size} bytes where the index says {expected}; put the whole file back, or "
            f"run groundup data prepare again with --overwrite"
        )
    return path


def _map(folder: Path, shard: ShardEntry, index: ShardIndex) -> npt.NDArray[Any]:
    path = check_shard_file(folder, shard, index.id_bytes)
    if shard.num_ids == 0:
        raise DataError(f"{folder}: the index names an empty shard, {shard.file}; it is damaged")
    return np.memmap(path, np.dtype(index.dtype).newbyteorder("<"), mode="r")
