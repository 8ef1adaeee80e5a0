"""Writes the documents of one split as a row of shards, hashing on the way.

A shard grows in a `.partial` file and takes its name when it is complete and synced. The state
of an unfinished one is a few numbers, from which a later process continues.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from groundup.data.prepare.journal import SplitState
from groundup.data.shards.index import HASH_BLOCK_BYTES, HashTree, ShardEntry, Split
from groundup.errors import DataError

_SHARD_FILE = re.compile(r"(?:train|validation)_\d{6,}\.bin(?:\.partial)?")

# Syncing on the way leaves little to wait for when a shard is complete.
_SYNC_BYTES = 8 << 20


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
        # A block is hashed when it is full, but a part of it may have to be in the file before.
        self._block = memoryview(bytearray(HASH_BLOCK_BYTES))
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
            self._append(chunk.astype(self._dtype, copy=False).view(np.uint8).data)
            self.num_ids += len(chunk)
        self.num_documents += num_documents
        self.num_bytes += num_bytes

    def sync(self) -> None:
        """Make what was written durable; `state` describes it."""
        if self.num_ids:
            self._write_waiting()
            with self._named_errors():
                self._sync()

    def read_tail(self, num_ids: int) -> npt.NDArray[Any]:
        """The last ids of the current shard."""
        self._write_waiting()
        with self._named_errors(), open(_partial(self.path), "rb") as file:
            file.seek((self.num_ids - num_ids) * self._dtype.itemsize)
            return np.frombuffer(file.read(), self._dtype)

    def finish_shortened(self, entry: ShardEntry, end_id: int) -> None:
        """Complete the current shard with fewer ids than it has, as `entry` counts them, the last
        of them the end id. The unfinished file stays, for `remove_unfinished` to delete when an
        index holds the shard."""
        self.close()
        kept = entry.num_ids - 1
        with self._named_errors(), open(_partial(self.path), "rb") as file:
            target = self.path.open("wb")
            with target:
                left = kept * self._dtype.itemsize
                while left:
                    block = file.read(min(left, HASH_BLOCK_BYTES))
                    target.write(block)
                    left -= len(block)
                target.write(np.array([end_id], self._dtype).tobytes())
                target.flush()
                os.fsync(target.fileno())
        tree = HashTree()
        with self.path.open("rb") as written:
            while block := written.read(HASH_BLOCK_BYTES):
                tree.add_bytes(block)
        self.shards.append(entry.model_copy(update={"file": self.path.name, "hash": tree.value()}))

    def remove_unfinished(self) -> None:
        """Delete the file that `finish_shortened` left."""
        for number in range(len(self.shards)):
            _partial(self._folder / shard_name(self.split, number)).unlink(missing_ok=True)

    def finish_shard(self) -> None:
        """Complete the current shard, unless it is empty, and begin the next."""
        if not self.num_ids:
            return
        self._write_waiting()
        if self._filled:
            self._hash.add_bytes(self._block[: self._filled])
        path = self.path
        with self._named_errors():
            self._sync()
            self.close()
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

    def _append(self, data: memoryview) -> None:
        """Whole blocks go from `data` to the file; what is left waits for the next to come."""
        if self._filled:
            data = data[self._fill(data) :]
            if self._filled == HASH_BLOCK_BYTES:
                self._hash.add_bytes(self._block)
                self._write_waiting()
                self._filled = self._written = 0
        whole = len(data) - len(data) % HASH_BLOCK_BYTES
        if whole:
            self._hash.add_bytes(data[:whole])
            self._write(data[:whole])
        self._fill(data[whole:])

    def _fill(self, data: memoryview) -> int:
        count = min(len(data), HASH_BLOCK_BYTES - self._filled)
        self._block[self._filled : self._filled + count] = data[:count]
        self._filled += count
        return count

    def _write_waiting(self) -> None:
        """Write what waits for its block to be full, as far as the file does not have it yet."""
        self._write(self._block[self._written : self._filled])
        self._written = self._filled

    def _write(self, data: memoryview) -> None:
        with self._named_errors():
            if self._file < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                self._file = os.open(_partial(self.path), flags, 0o666)
            while data:
                count = os.write(self._file, data)
                data = data[count:]
                self._unsynced += count
            if self._unsynced >= _SYNC_BYTES:
                self._sync()

    def _sync(self) -> None:
        os.fsync(self._file)
        self._unsynced = 0

    def _restore(self) -> None:
        """Continue the unfinished shard as it was when `state` was taken; later bytes are cut."""
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
            self._hash.add_bytes(self._block)
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


def find_shard_files(folder: Path) -> list[str]:
    """The names in a folder that only shards have, finished or not."""
    return sorted(name for name in os.listdir(folder) if _SHARD_FILE.fullmatch(name))


def gather(
    ids: npt.NDArray[Any], offsets: npt.NDArray[np.int64], mask: npt.NDArray[np.bool_]
) -> list[npt.NDArray[Any]]:
    """The ids of the chosen documents: views of whole runs of them where runs are long."""
    if mask.all():
        return [ids[offsets[0] : offsets[-1]]]
    runs = np.flatnonzero(np.diff(mask, prepend=False, append=False)).reshape(-1, 2)
    begins, ends = offsets[runs[:, 0]], offsets[runs[:, 1]]
    if len(runs) > 64 and len(runs) * 512 > int((ends - begins).sum()):
        return [ids[offsets[0] : offsets[-1]][np.repeat(mask, np.diff(offsets))]]
    return [ids[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")
