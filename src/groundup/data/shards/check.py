"""Are shards whole, and do they belong to this tokenizer and model?

`check_shards` looks at what is cheap, whatever the size of the corpus; `verify` reads every byte.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

# Enough to find shards that something else was written into, little enough for a cold disk.
_NUM_BLOCKS = 64
_BLOCK_IDS = 4096
_READ_BYTES = 16 * HASH_BLOCK_BYTES

_Sizes = npt.NDArray[np.int64]


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
    mix: dict[str, str] | None = None
    """The contents of the other folders that were mixed in."""


@dataclass(frozen=True)
class VerifySummary:
    """What was checked."""

    index: ShardIndex
    num_shards: int
    num_bytes: int


def check_shards(
    folder: str | os.PathLike[str],
    tokenizer: "Tokenizer",
    splits: Sequence[str] = ("train", "validation"),
    full: bool = False,
    index: ShardIndex | None = None,
) -> DataIds:
    """Make sure that a folder of shards can be trained on; a DataError says why it cannot.

    The index, presence and size of the files of `splits`, the tokenizer, and blocks of ids spread
    evenly are checked; with `full`, the hashes and ids of all files.
    """
    sizes = token_sizes(tokenizer)
    index = index or read_index(Path(folder))
    if not splits:
        raise ConfigError("no split was named to check; name train at least")
    num_ids = {}
    for split in splits:
        shards = open_shards(folder, split, tokenizer, index)
        if shards.num_ids == 0:
            raise DataError(
                f"{folder} has nothing in its split {split}; run groundup data prepare with more "
                f"text or another --validation-fraction, or do without this split"
            )
        last = max(0, shards.num_ids - _BLOCK_IDS)
        for begin in np.unique(np.linspace(0, last, _NUM_BLOCKS, dtype=np.int64)).tolist():
            ids = shards.read(begin, min(begin + _BLOCK_IDS, shards.num_ids))
            bad = _find_unknown(ids, len(sizes), sizes)
            if bad is not None:
                file, position = shards.locate(begin + bad)
                raise _unknown_id(file.path, int(ids[bad]), position * index.id_bytes)
        num_ids[split] = shards.num_ids
    if full:
        verify(folder, tokenizer, index=index)
    content, name = content_id(index), os.fspath(folder)
    return DataIds(name, content, index.tokenizer, index.vocab_size, num_ids)


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


def verify(
    folder: str | os.PathLike[str],
    tokenizer: "Tokenizer | None" = None,
    progress: Progress | None = None,
    index: ShardIndex | None = None,
) -> VerifySummary:
    """Read all shards again; a DataError names the first that is not what the index says.

    With `tokenizer` its id must be the one in the index, ids that its vocabulary leaves out are
    found, and the tokens must add up to the bytes of text that were encoded.
    """
    folder = Path(folder)
    index = index or read_index(folder)
    sizes = None
    if tokenizer is not None:
        check_tokenizer(folder, index, tokenizer)
        sizes = token_sizes(tokenizer)
    shards = [shard for split in index.splits.values() for shard in split.shards]
    total = sum(shard.num_ids for shard in shards) * index.id_bytes
    done = 0
    paths = [check_shard_file(folder, shard, index.id_bytes) for shard in shards]
    for path, shard in zip(paths, shards, strict=True):
        for num_bytes in _check_shard(path, shard, index, sizes):
            done += num_bytes
            if progress is not None:
                progress(done, total)
    return VerifySummary(index, len(shards), total)


def check_hash(folder: Path, shard: ShardEntry, id_bytes: int) -> None:
    """Make sure that a shard is there, whole and unchanged."""
    path = check_shard_file(folder, shard, id_bytes)
    tree = HashTree()
    for block in _blocks(path):
        tree.add_bytes(block)
    _compare_hash(path, shard, tree)


def token_sizes(tokenizer: "Tokenizer") -> _Sizes:
    """Bytes of each token by id; 0 where the vocabulary has a gap."""
    sizes = np.zeros(tokenizer.vocab_size, np.int64)
    sizes[list(tokenizer.vocab)] = [len(token) for token in tokenizer.vocab.values()]
    return sizes


def _check_shard(
    path: Path, shard: ShardEntry, index: ShardIndex, sizes: _Sizes | None
) -> Iterator[int]:
    """Read a shard once; yield how many bytes came each time."""
    tree, end = HashTree(), index.end
    offset = num_ends = num_bytes = 0
    last_id = -1
    for block in _blocks(path):
        tree.add_bytes(block)
        ids = np.frombuffer(block, np.dtype(index.dtype).newbyteorder("<"))
        bad = _find_unknown(ids, index.vocab_size, sizes)
        if bad is not None:
            raise _unknown_id(path, int(ids[bad]), offset + bad * index.id_bytes)
        num_bytes += 0 if sizes is None else int(sizes[ids].sum())
        num_ends += int(np.count_nonzero(ids == end.id))
        last_id = int(ids[-1])
        offset += len(block)
        yield len(block)
    _compare_hash(path, shard, tree)
    if last_id != end.id:
        raise DataError(f"{path} does not end with the end id {end.id}; {RESTORE}")
    if num_ends < shard.num_documents:
        raise DataError(
            f"{path} has {num_ends} end ids for the {shard.num_documents} documents that the index "
            f"counts; {RESTORE}"
        )
    # An end id inside a document stood there as text, and counts as such.
    num_bytes -= shard.num_documents * len(end.text.encode())
    if sizes is not None and num_bytes != shard.num_bytes:
        raise DataError(
            f"{path} holds {num_bytes} bytes of text where the index says {shard.num_bytes}; "
            f"{RESTORE}"
        )


def _find_unknown(ids: npt.NDArray[Any], vocab_size: int, sizes: _Sizes | None) -> int | None:
    """The index of the first id that is no token; gaps are known only with the sizes of tokens."""
    is_bad = ids >= (vocab_size if sizes is None else len(sizes))
    if sizes is not None and not is_bad.any():
        is_bad = sizes[ids] == 0
    return int(np.argmax(is_bad)) if is_bad.any() else None


def _unknown_id(path: Path, id: int, offset: int) -> DataError:
    # In bytes, as a hex editor shows it.
    return DataError(
        f"{path} has id {id} at byte {offset}, which is not in the vocabulary; {RESTORE}"
    )


def _blocks(path: Path) -> Iterator[memoryview]:
    """The file in pieces of whole hash blocks; each is overwritten by the next."""
    view = memoryview(bytearray(_READ_BYTES))
    with open(path, "rb") as file:
        while count := file.readinto(view):
            yield view[:count]


def _compare_hash(path: Path, shard: ShardEntry, tree: HashTree) -> None:
    if tree.value() != shard.hash:
        raise DataError(
            f"{path} is damaged: its hash is {tree.value()} where the index says {shard.hash}; "
            f"{RESTORE}"
        )
