"""Check that shards are intact and match a tokenizer and model.

`check_shards` checks quickly what training needs; `verify` reads every byte.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from groundup.data.shards.index import (
    HASH_BLOCK_BYTES,
    HashTree,
    ShardEntry,
    ShardIndex,
    read_index,
)
from groundup.data.shards.reading import RESTORE, check_shard_file, check_tokenizer, open_shards
from groundup.errors import ConfigError, DataError
from groundup.files import hash_bytes
from groundup.runtime import Progress

if TYPE_CHECKING:
    from groundup.tokenizer import Tokenizer

_READ_BYTES = 16 * HASH_BLOCK_BYTES


@dataclass(frozen=True)
class DataIds:
    """The data of a run, as recorded with it."""

    folder: str
    content: str
    """`content_id` of the folder."""
    tokenizer: str
    vocab_size: int
    num_tokens: dict[str, int]
    """By split."""
    mix: dict[str, str] | None = None
    """`content_id` of each of the other folders of the mix."""


def check_shards(
    folder: str | os.PathLike[str],
    tokenizer: "Tokenizer",
    splits: Sequence[str] = ("train", "validation"),
    full: bool = False,
    index: ShardIndex | None = None,
) -> DataIds:
    """Check that a folder of shards can be trained on; raises DataError otherwise.

    Checks the index, the tokenizer, and that the files of `splits` exist with the right sizes; with
    `full`, also the hashes of all files.
    """
    index = index or read_index(Path(folder))
    num_tokens = {}
    for split in splits:
        shards = open_shards(folder, split, tokenizer, index)
        if shards.num_tokens == 0:
            raise DataError(
                f"{folder} has no tokens in split {split}; run groundup data prepare with more "
                f"text or another --validation-fraction"
            )
        num_tokens[split] = shards.num_tokens
    if full:
        verify(folder, tokenizer, index=index)
    content, name = content_id(index), os.fspath(folder)
    return DataIds(name, content, index.tokenizer, index.vocab_size, num_tokens)


def check_vocabulary(index: ShardIndex, vocab_size: int) -> None:
    """Check that all ids of the shards are below `vocab_size`."""
    if vocab_size < index.vocab_size:
        raise ConfigError(
            f"vocab_size {vocab_size} is too small for shards with ids up to "
            f"{index.vocab_size - 1}; set the model's vocab_size to {index.vocab_size} or more"
        )


def content_id(index: ShardIndex) -> str:
    """Return a hash of all ids of a folder in order, independent of the source files."""
    shards = {
        name: [[shard.num_tokens, shard.hash] for shard in split.shards]
        for name, split in index.splits.items()
    }
    content = {"dtype": index.dtype, "tokenizer": index.tokenizer, "splits": shards}
    return hash_bytes(json.dumps(content, sort_keys=True).encode())


def verify(
    folder: str | os.PathLike[str],
    tokenizer: "Tokenizer | None" = None,
    progress: Progress | None = None,
    index: ShardIndex | None = None,
) -> ShardIndex:
    """Re-read all shards; raises DataError for the first that does not match the index.

    If given, `tokenizer` must match the index too.
    """
    folder = Path(folder)
    index = index or read_index(folder)
    if tokenizer is not None:
        check_tokenizer(folder, index, tokenizer)
    done, total = 0, sum(split.num_tokens for split in index.splits.values())
    for shard in index.shards:
        check_hash(folder, shard, index.id_bytes)
        done += shard.num_tokens
        if progress is not None:
            progress(done * index.id_bytes, total * index.id_bytes)
    return index


def check_hash(folder: Path, shard: ShardEntry, id_bytes: int) -> None:
    """Check that a shard's size and hash match the index."""
    path, tree = check_shard_file(folder, shard, id_bytes), HashTree()
    view = memoryview(bytearray(_READ_BYTES))
    with open(path, "rb") as file:
        while count := file.readinto(view):
            tree.add_bytes(view[:count])
    if tree.value() != shard.hash:
        raise DataError(
            f"{path} is damaged: its hash is {tree.value()}, but the index has {shard.hash}; "
            f"{RESTORE}"
        )


def token_sizes(tokenizer: "Tokenizer") -> npt.NDArray[np.int64]:
    """Return the length of each token in bytes, by id; 0 for unused ids."""
    sizes = np.zeros(tokenizer.vocab_size, np.int64)
    sizes[list(tokenizer.vocab)] = [len(token) for token in tokenizer.vocab.values()]
    return sizes
