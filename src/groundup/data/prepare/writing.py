"""Write one shard of both splits: ids go to `.partial` files, which are renamed when complete.

A sidecar, written last, describes the finished shard until the index does.
"""

import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from groundup import disk
from groundup.data.prepare.encoding import EncodedDocuments
from groundup.data.shards.index import (
    HASH_BLOCK_BYTES,
    SPLITS,
    HashTree,
    Record,
    ShardEntry,
    SourceEntry,
    Split,
)
from groundup.files import hash_bytes
from groundup.text_files import Part, Source, path_text

# Sync as the file grows, so that the final sync is short.
_SYNC_BYTES = 8 << 20


class Sidecar(Record):
    """A finished shard: the settings and sources it was made from, and its files."""

    format: Literal["groundup-shard"] = "groundup-shard"
    version: Literal[1] = 1
    provenance: dict[str, Any]
    part: list[Any]
    shards: dict[str, ShardEntry]
    sources: list[SourceEntry]


def describe_part(part: Part) -> list[Any]:
    """Describe a part for a sidecar; the same for as long as its sources are unchanged."""
    sources = [[path_text(source), source.size, source.stamp] for source in part.sources]
    return [sources, None if part.span is None else list(part.span)]


class ShardWriter:
    """Writes the documents of one part, in order."""

    def __init__(
        self, folder: Path, number: int, dtype: np.dtype[Any], validation_fraction: float
    ) -> None:
        self._threshold = np.uint64(int(validation_fraction * 2**64))
        self._files = {
            split: _SplitFile(folder / f"{split}_{number:06d}.bin", dtype) for split in SPLITS
        }
        # The split of the current document, if it comes in pieces.
        self._inside: Split | None = None
        self._sources: list[SourceEntry] = []
        self._begin_source()

    def write(self, item: EncodedDocuments) -> None:
        is_validation = item.hashes < self._threshold
        if item.continues or self._inside is not None:
            split = self._inside or SPLITS[int(is_validation[0])]
            is_validation[:] = split == "validation"
            self._inside = split if item.continues else None
        for name, mask in zip(SPLITS, (~is_validation, is_validation), strict=True):
            file = self._files[name]
            for chunk in gather(item.ids, item.offsets, mask):
                file.write(chunk)
            num_documents = 0 if item.continues else int(mask.sum())
            file.count(num_documents, int(item.lengths[mask].sum()))
        begin = 0
        for row, source, note in item.ends:
            self._count(item, begin, row)
            self._end_source(source, note)
            begin = row
        self._count(item, begin, len(item.hashes))

    def finish(self, part: Part) -> tuple[dict[str, ShardEntry], list[SourceEntry]]:
        """Complete the files; returns the entries of the shards and of the sources."""
        if len(self._sources) < len(part.sources):
            # The part is a range that ends before its source does.
            self._end_source(part.sources[-1], None)
        entries = {split: file.finish() for split, file in self._files.items()}
        return {split: entry for split, entry in entries.items() if entry}, self._sources

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _count(self, item: EncodedDocuments, begin: int, end: int) -> None:
        self._hash.add(item.hashes[begin:end])
        self._num_documents += end - begin - int(item.continues and end > begin)
        self._num_bytes += int(item.lengths[begin:end].sum())

    def _begin_source(self) -> None:
        self._hash = HashTree()
        self._num_documents = self._num_bytes = 0

    def _end_source(self, source: Source, note: str | None) -> None:
        counts = self._num_documents, self._num_bytes, self._hash.value()
        path, size = path_text(source), source.size
        self._sources.append(SourceEntry(path, size, *counts, note, source.stamp))
        self._begin_source()


def join_sources(shards: Iterable[list[SourceEntry]]) -> list[SourceEntry]:
    """Join the sources of all shards, merging the entries of one split over several shards."""
    joined: list[SourceEntry] = []
    for entry in (entry for entries in shards for entry in entries):
        if joined and joined[-1].path == entry.path:
            last = joined.pop()
            entry = dataclasses.replace(
                entry,
                num_documents=last.num_documents + entry.num_documents,
                num_bytes=last.num_bytes + entry.num_bytes,
                hash=hash_bytes((last.hash + entry.hash).encode()),
                unreadable=last.unreadable or entry.unreadable,
            )
        joined.append(entry)
    return joined


def gather(
    ids: npt.NDArray[Any], offsets: npt.NDArray[np.int64], mask: npt.NDArray[np.bool_]
) -> list[npt.NDArray[Any]]:
    """Return the ids of the selected documents, as a view of each contiguous run."""
    runs = np.flatnonzero(np.diff(mask, prepend=False, append=False)).reshape(-1, 2)
    return [ids[begin:end] for begin, end in offsets[runs].tolist()]


def write_shard(
    path: Path, chunks: Sequence[npt.NDArray[Any]], num_documents: int, num_bytes: int
) -> ShardEntry:
    """Write a whole shard."""
    file = _SplitFile(path, chunks[0].dtype)
    for ids in chunks:
        file.write(ids)
    file.count(num_documents, num_bytes)
    entry = file.finish()
    assert entry is not None
    return entry


class _SplitFile:
    """A file of ids, hashed in blocks while it is written."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self._path = path
        self._partial = path.with_name(path.name + ".partial")
        self._dtype = dtype.newbyteorder("<")
        self._file = -1
        self._hash = HashTree()
        self._rest = bytearray()
        self._unsynced = self._num_tokens = self._num_documents = self._num_bytes = 0

    def count(self, num_documents: int, num_bytes: int) -> None:
        self._num_documents += num_documents
        self._num_bytes += num_bytes

    def write(self, ids: npt.NDArray[Any]) -> None:
        self._num_tokens += len(ids)
        data = ids.astype(self._dtype, copy=False).view(np.uint8).data
        if self._rest:
            missing = HASH_BLOCK_BYTES - len(self._rest)
            self._rest += data[:missing]
            data = data[missing:]
            if len(self._rest) < HASH_BLOCK_BYTES:
                return
            self._write(memoryview(self._rest))
        whole = len(data) - len(data) % HASH_BLOCK_BYTES
        self._write(data[:whole])
        self._rest = bytearray(data[whole:])

    def finish(self) -> ShardEntry | None:
        if not self._num_tokens:
            return None
        self._write(memoryview(self._rest))
        disk.sync(self._file)
        self.close()
        disk.replace(self._partial, self._path)
        return ShardEntry(
            file=self._path.name,
            num_tokens=self._num_tokens,
            num_documents=self._num_documents,
            num_bytes=self._num_bytes,
            hash=self._hash.value(),
        )

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, data: memoryview) -> None:
        if not data:
            return
        self._hash.add_bytes(data)
        try:
            if self._file < 0:
                self._file = disk.open_file(self._partial, disk.TO_REPLACE)
            disk.write(self._file, data)
            self._unsynced += len(data)
            if self._unsynced >= _SYNC_BYTES:
                disk.sync(self._file)
                self._unsynced = 0
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._partial)) from error
