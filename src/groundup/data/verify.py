"""Every byte of a folder of shards against its index: hashes, counts, ids within the vocabulary."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from groundup.data.shard_index import HASH_BLOCK_BYTES, HashTree, ShardEntry, ShardIndex, read_index
from groundup.data.shards import check_shard_file, check_tokenizer
from groundup.errors import DataError

if TYPE_CHECKING:
    from groundup.tokenizer import Tokenizer

Progress = Callable[[int, int | None], None]

_READ_BYTES = 16 * HASH_BLOCK_BYTES
_MEND = "put the file back as it was, or run groundup data prepare again with --overwrite"


@dataclass(frozen=True)
class VerifySummary:
    """What was checked."""

    index: ShardIndex
    num_shards: int
    num_bytes: int


def verify(
    folder: str | os.PathLike[str],
    tokenizer: "Tokenizer | None" = None,
    progress: Progress | None = None,
) -> VerifySummary:
    """Read all shards again; a DataError names the first that is not what the index says.

    With `tokenizer` its id must be the one in the index, ids that its vocabulary leaves out are
    found, and the tokens must add up to the bytes of text that were encoded.
    """
    folder = Path(folder)
    index = read_index(folder)
    sizes = None
    if tokenizer is not None:
        check_tokenizer(folder, index, tokenizer)
        sizes = _token_sizes(tokenizer)
    shards = [shard for split in index.splits.values() for shard in split.shards]
    total = sum(shard.num_ids for shard in shards) * index.id_bytes
    done = 0
    for shard in shards:
        check_shard_file(folder, shard, index.id_bytes)
    for shard in shards:
        check = _ShardCheck(folder / shard.file, shard, index, sizes)
        for num_bytes in check.run():
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


class _ShardCheck:
    """One pass over a shard; the place of a bad id is said in bytes, as a hex editor shows it."""

    def __init__(
        self,
        path: Path,
        shard: ShardEntry,
        index: ShardIndex,
        sizes: npt.NDArray[np.int64] | None,
    ) -> None:
        self._path = path
        self._shard = shard
        self._index = index
        self._sizes = sizes
        self._num_ids = 0
        self._num_ends = 0
        self._num_bytes = 0
        self._last_id = -1

    def run(self) -> Iterator[int]:
        tree = HashTree()
        for block in _blocks(self._path):
            tree.add_bytes(block)
            self._check_ids(np.frombuffer(block, np.dtype(self._index.dtype).newbyteorder("<")))
            yield len(block)
        _compare_hash(self._path, self._shard, tree)
        self._check_counts()

    def _check_ids(self, ids: npt.NDArray[Any]) -> None:
        vocab_size = self._index.vocab_size
        if int(ids.max()) >= vocab_size:
            self._refuse_id(ids, ids >= vocab_size, f"the vocabulary has {vocab_size} tokens")
        if self._sizes is not None:
            sizes = self._sizes[ids]
            if int(sizes.min()) == 0:
                self._refuse_id(ids, sizes == 0, "the vocabulary has no such token")
            self._num_bytes += int(sizes.sum())
        self._num_ends += int(np.count_nonzero(ids == self._index.end.id))
        self._last_id = int(ids[-1])
        self._num_ids += len(ids)

    def _refuse_id(self, ids: npt.NDArray[Any], is_bad: npt.NDArray[np.bool_], reason: str) -> None:
        place = int(np.argmax(is_bad))
        offset = (self._num_ids + place) * self._index.id_bytes
        raise DataError(f"{self._path} has id {ids[place]} at byte {offset}: {reason}; {_MEND}")

    def _check_counts(self) -> None:
        shard, end = self._shard, self._index.end
        if self._last_id != end.id:
            raise DataError(f"{self._path} does not end with the end id {end.id}; {_MEND}")
        if self._num_ends < shard.num_documents:
            raise DataError(
                f"{self._path} has {self._num_ends} end ids for the {shard.num_documents} "
                f"documents that the index counts; {_MEND}"
            )
        # An end id inside a document stood there as text, and counts as such.
        text_bytes = self._num_bytes - shard.num_documents * len(end.text.encode())
        if self._sizes is not None and text_bytes != shard.num_bytes:
            raise DataError(
                f"{self._path} holds {text_bytes} bytes of text where the index says "
                f"{shard.num_bytes}; {_MEND}"
            )


def _token_sizes(tokenizer: "Tokenizer") -> npt.NDArray[np.int64]:
    """Bytes of each token by id; 0 where the vocabulary has a gap."""
    sizes = np.zeros(tokenizer.vocab_size, np.int64)
    for id, token in tokenizer.vocab.items():
        sizes[id] = len(token)
    return sizes


def _blocks(path: Path) -> Iterator[memoryview]:
    """The file in pieces of whole hash blocks; each is overwritten by the next."""
    buffer = bytearray(_READ_BYTES)
    view = memoryview(buffer)
    with open(path, "rb", buffering=0) as file:
        filled = 0
        while count := file.readinto(view[filled:]):
            filled += count
            if filled == len(buffer):
                yield view
                filled = 0
    if filled:
        yield view[:filled]


def _compare_hash(path: Path, shard: ShardEntry, tree: HashTree) -> None:
    if tree.value() != shard.hash:
        raise DataError(
            f"{path} is damaged: its hash is {tree.value()} where the index says {shard.hash}; "
            f"{_MEND}"
        )
