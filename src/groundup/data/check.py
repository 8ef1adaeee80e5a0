"""Shards before the first step: are they whole, and do they belong to this tokenizer and model?

What is cheap is always looked at, whatever the size of the corpus; every byte on request, which is
the work of `verify`.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from groundup.data.shard_index import ShardIndex
from groundup.data.shards import Shards, open_shards
from groundup.data.verify import verify
from groundup.errors import ConfigError, DataError
from groundup.files import hash_bytes

if TYPE_CHECKING:
    from groundup.tokenizer import Tokenizer

# Enough to find shards that something else was written into, little enough for a cold disk.
_NUM_BLOCKS = 64
_BLOCK_IDS = 4096


@dataclass(frozen=True)
class DataIds:
    """What a run was trained on, to be written down with it."""

    folder: str
    content: str
    """Equal for folders that hold the same ids in the same order."""
    tokenizer: str
    vocab_size: int
    num_ids: dict[str, int]
    """By split."""


def check_shards(
    folder: str | os.PathLike[str],
    tokenizer: "Tokenizer",
    splits: Sequence[str] = ("train", "validation"),
    full: bool = False,
    progress: Callable[[int, int | None], None] | None = None,
) -> DataIds:
    """Make sure that a folder of shards can be trained on; a DataError says why it cannot.

    The index, the presence and the size of the files of `splits`, the tokenizer and ids here and
    there are checked; with `full`, the hashes and ids of all files.
    """
    is_token = np.zeros(tokenizer.vocab_size + 1, np.bool_)
    is_token[list(tokenizer.vocab)] = True
    opened = [open_shards(folder, split, tokenizer) for split in splits]
    if not opened:
        raise ConfigError("no split was named to check; name train at least")
    for shards in opened:
        if shards.num_ids == 0:
            raise DataError(
                f"{folder} has nothing in its split {shards.split}; run groundup data prepare with "
                f"more text or another --validation-fraction, or do without this split"
            )
        _check_some_ids(Path(folder), shards, is_token)
    if full:
        verify(folder, tokenizer, progress)
    index = opened[0].index
    return DataIds(
        folder=os.fspath(folder),
        content=content_id(index),
        tokenizer=index.tokenizer,
        vocab_size=index.vocab_size,
        num_ids={shards.split: shards.num_ids for shards in opened},
    )


def check_vocabulary(index: ShardIndex, vocab_size: int) -> None:
    """Make sure that a model with `vocab_size` tokens knows all ids of the shards."""
    if vocab_size < index.vocab_size:
        raise ConfigError(
            f"vocab_size {vocab_size} is too small for shards with ids up to "
            f"{index.vocab_size - 1}; set the model's vocab_size to {index.vocab_size} or more"
        )


def content_id(index: ShardIndex) -> str:
    """One hash for all ids of a folder, whatever files they came from."""
    shards = {
        name: [[shard.num_ids, shard.hash] for shard in split.shards]
        for name, split in index.splits.items()
    }
    content = {"dtype": index.dtype, "tokenizer": index.tokenizer, "splits": shards}
    return hash_bytes(json.dumps(content, sort_keys=True).encode())


def _check_some_ids(folder: Path, shards: Shards, is_token: npt.NDArray[np.bool_]) -> None:
    """Look at blocks spread evenly over a split, its first and its last among them."""
    last = max(0, shards.num_ids - _BLOCK_IDS)
    for begin in np.unique(np.linspace(0, last, _NUM_BLOCKS, dtype=np.int64)).tolist():
        ids = shards.read(begin, min(begin + _BLOCK_IDS, shards.num_ids))
        # Whatever lies beyond the vocabulary finds the entry behind its last.
        is_good = is_token[np.minimum(ids, len(is_token) - 1)]
        if not is_good.all():
            place = int(np.argmin(is_good))
            _refuse_id(folder, shards, begin + place, int(ids[place]))


def _refuse_id(folder: Path, shards: Shards, place: int, id: int) -> None:
    entries = shards.index.splits[shards.split].shards
    begins = np.cumsum([0, *(entry.num_ids for entry in entries)])
    number = int(np.searchsorted(begins, place, side="right")) - 1
    offset = (place - int(begins[number])) * shards.index.id_bytes
    raise DataError(
        f"{folder / entries[number].file} has id {id} at byte {offset}, which the tokenizer does "
        f"not know; put the file back as it was, or run groundup data prepare again with "
        f"--overwrite"
    )
