"""Writes the documents of one split as a row of shards, hashing on the way.

A shard grows in a `.partial` file and takes its name when it is complete and synced. The state
of an unfinished one is a few numbers, from which a later process goes on.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from groundup.data.shard_index import HASH_BLOCK_BYTES, HashTree, Record, ShardEntry, Split
from groundup.errors import DataError

# Syncing on the way leaves little to wait for when a shard is complete.
_SYNC_BYTES = 8 << 20


class SplitState(Record):
    """What a split consists of at some moment: finished shards, and how much of the next."""

    shards: list[ShardEntry] = Field(default_factory=list)
    num_ids: int = 0
    num_documents: int = 0
    num_bytes: int = 0


class ShardWriter:
    """The shards of one split, continued from `state`."""

    def __init__(self, folder: Path, split: Split, dtype: np.dtype[Any], state: SplitState) -> None:
        self.split = split
        self.shards = list(state.shards)
        self.num_ids = state.num_ids
        self.num_documents = state.num_documents
        self.num_bytes = state.num_bytes
        self._folder = folder
        self._dtype = dtype.newbyteorder("<")
        self._file = -1
        self._hash = HashTree()
        # A block is hashed when full; what of it is already in the file can be asked for earlier.
        self._block = memoryview(bytearray(HASH_BLOCK_BYTES))
        self._block_bytes = np.frombuffer(self._block, np.uint8)
        self._filled = 0
        self._written = 0
        self._unsynced = 0
        if self.num_ids:
            self._restore()

    @property
    def path(self) -> Path:
        """Where the shard that is being written will lie."""
        return self._folder / shard_name(self.split, len(self.shards))

    @property
    def state(self) -> SplitState:
        return SplitState(
            shards=list(self.shards),
            num_ids=self.num_ids,
            num_documents=self.num_documents,
            num_bytes=self.num_bytes,
        )

    def write(self, chunks: Iterable[npt.NDArray[Any]], num_documents: int, num_bytes: int) -> None:
        """Add the ids of documents that hold `num_bytes` of text."""
        for chunk in chunks:
            self._append(chunk.astype(self._dtype, copy=False).view(np.uint8))
            self.num_ids += len(chunk)
        self.num_documents += num_documents
        self.num_bytes += num_bytes

    def sync(self) -> None:
        """Make what was written durable; `state` describes it."""
        if self.num_ids:
            with self._named_errors():
                self._write_out()
                os.fsync(self._file)

    def finish_shard(self) -> None:
        """Complete the current shard, unless it is empty, and begin the next."""
        if not self.num_ids:
            return
        with self._named_errors():
            self._write_out()
            os.fsync(self._file)
            if self._filled:
                self._hash.add_block(self._block[: self._filled])
            self.close()
            path = self.path
            os.replace(_partial(path), path)
        self.shards.append(
            ShardEntry(
                file=path.name,
                num_ids=self.num_ids,
                num_documents=self.num_documents,
                num_bytes=self.num_bytes,
                hash=self._hash.value(),
            )
        )
        self._hash = HashTree()
        self._filled = self._written = self.num_ids = self.num_documents = self.num_bytes = 0

    def close(self) -> None:
        if self._file >= 0:
            file, self._file = self._file, -1
            os.close(file)

    def _append(self, data: npt.NDArray[np.uint8]) -> None:
        begin = 0
        while begin < len(data):
            count = min(len(data) - begin, HASH_BLOCK_BYTES - self._filled)
            self._block_bytes[self._filled : self._filled + count] = data[begin : begin + count]
            self._filled += count
            begin += count
            if self._filled == HASH_BLOCK_BYTES:
                with self._named_errors():
                    self._write_out()
                self._hash.add_block(self._block)
                self._filled = self._written = 0
                self._sync_often()

    def _sync_often(self) -> None:
        self._unsynced += HASH_BLOCK_BYTES
        if self._unsynced >= _SYNC_BYTES:
            with self._named_errors():
                os.fsync(self._file)
            self._unsynced = 0

    def _write_out(self) -> None:
        if self._file < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._file = os.open(_partial(self.path), flags, 0o666)
        while self._written < self._filled:
            view = self._block[self._written : self._filled]
            self._written += os.write(self._file, view)

    def _restore(self) -> None:
        """Go on in the unfinished shard as it was when `state` was taken; later bytes are cut."""
        partial = _partial(self.path)
        if not partial.exists() and self.path.exists():
            # The shard was completed after the state was taken, but nobody wrote that down.
            os.replace(self.path, partial)
        size = self.num_ids * self._dtype.itemsize
        if not partial.exists() or partial.stat().st_size < size:
            raise DataError(
                f"{partial} is missing or shorter than the {size} bytes that were written to it; "
                f"start over with --overwrite"
            )
        self._file = os.open(partial, os.O_RDWR | os.O_CLOEXEC)
        os.ftruncate(self._file, size)
        for _ in range(size // HASH_BLOCK_BYTES):
            self._read_block(HASH_BLOCK_BYTES)
            self._hash.add_block(self._block)
        self._filled = self._written = size % HASH_BLOCK_BYTES
        self._read_block(self._filled)

    def _read_block(self, count: int) -> None:
        view = self._block[:count]
        while view:
            view = view[os.readv(self._file, [view]) :]

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(_partial(self.path))) from error


def shard_name(split: Split, number: int) -> str:
    return f"{split}_{number:06d}.bin"


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")
