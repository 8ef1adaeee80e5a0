"""Encoded documents into the shards of both splits, with a journal to continue from after a kill.

The law: what lies in the folder is always a beginning of what an undisturbed run would write. The
journal names that beginning; bytes behind it are written again.
"""

import logging
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from groundup.data.prepare.encoded_documents import EncodedDocuments
from groundup.data.prepare.journal import Journal, Position, SplitState
from groundup.data.prepare.shard_writer import ShardWriter, find_shard_files, gather, shard_name
from groundup.data.prepare.sources import SkippedDocuments, SourceEnd
from groundup.data.shards.index import (
    INDEX_NAME,
    JOURNAL_NAME,
    SPLITS,
    HashTree,
    ShardEntry,
    ShardIndex,
    SourceEntry,
    Split,
    SplitEntry,
    write_record,
)
from groundup.errors import DataError

_log = logging.getLogger(__name__)

# Between shards the journal is written this often, and never for more than a twentieth of the time.
_JOURNAL_SECONDS = 10.0
_JOURNAL_FRACTION = 0.05

# Of the piece that is taken for validation where there are too few documents to choose from.
_FEWEST_IDS = 16
_SMALL_TAIL_IDS = 4_096


class CorpusWriter:
    """Takes documents in the order of the sources; only one thread at a time may use it."""

    def __init__(self, folder: Path, journal: Journal) -> None:
        self._folder = folder
        self._identity = journal.identity
        self._settings = journal.identity.settings
        self._threshold = np.uint64(int(self._settings.validation_fraction * 2**64))
        self._finished = list(journal.position.finished)
        self._modified_ns = list(journal.position.modified_ns)
        self._start = journal.position
        self._to_skip = journal.position.num_documents
        self._begin_source()
        self._is_inside_document = False
        self._is_finishing = False
        self._journal_time = time.monotonic()
        self._journal_cost = 0.0
        dtype = np.dtype(self._identity.dtype)
        self._writers: dict[Split, ShardWriter] = {}
        try:
            for split in SPLITS:
                state = journal.splits[split]
                self._writers[split] = ShardWriter(folder, split, dtype, state)
            self._remove_strays()
        except BaseException:
            self.close()
            raise

    def write(self, item: EncodedDocuments | SkippedDocuments) -> None:
        if isinstance(item, SkippedDocuments):
            self._skip(item)
        elif item.is_whole and not self._is_inside_document:
            self._write_documents(item)
        else:
            self._write_part(item)

    def finish(self, token_bytes: npt.NDArray[np.int64]) -> ShardIndex:
        """Complete the last shards and write the index: from now on the folder is finished.

        token_bytes: the length of each id's token, special ones included.
        """
        self._is_finishing = True
        if self._wants_a_tail():
            self._cut_a_tail(token_bytes)
        else:
            for writer in self._writers.values():
                writer.finish_shard()
        if not any(writer.shards for writer in self._writers.values()):
            raise DataError("the inputs hold no documents")
        index = ShardIndex(
            **dict(self._identity),
            splits={split: SplitEntry.of(writer.shards) for split, writer in self._writers.items()},
            sources=self._finished,
        )
        write_record(self._folder / INDEX_NAME, index)
        (self._folder / JOURNAL_NAME).unlink()
        self._writers["train"].remove_unfinished()
        return index

    def _wants_a_tail(self) -> bool:
        """Whether validation was asked for, and there were too few documents to choose one."""
        train, validation = self._writers["train"], self._writers["validation"]
        is_empty = not validation.shards and not validation.num_ids
        return bool(self._threshold) and is_empty and train.num_ids >= 2 * _FEWEST_IDS

    def _cut_a_tail(self, token_bytes: npt.NDArray[np.int64]) -> None:
        """Let the end of the text, at least a tenth of a small one, be the validation split.

        Nothing that the journal names changes before the index is there.
        """
        train, validation = self._writers["train"], self._writers["validation"]
        all_ids = train.num_ids + sum(shard.num_ids for shard in train.shards)
        wanted = int(self._settings.validation_fraction * all_ids)
        wanted = max(wanted, min(all_ids // 10, _SMALL_TAIL_IDS), _FEWEST_IDS)
        end = self._identity.end
        tail = train.read_tail(min(wanted, train.num_ids // 2))
        num_documents = int(np.count_nonzero(tail == end.id))
        num_bytes = int(token_bytes[tail].sum()) - num_documents * len(end.text.encode())
        _log.info(
            "too few documents to choose some for validation: the last %s of %s ids are taken",
            f"{len(tail):,}",
            f"{all_ids:,}",
        )
        validation.write([tail], num_documents, num_bytes)
        validation.finish_shard()
        kept = ShardEntry(
            file="",
            num_ids=train.num_ids - len(tail) + 1,
            num_documents=train.num_documents - num_documents + 1,
            num_bytes=train.num_bytes - num_bytes,
            hash="",
        )
        train.finish_shortened(kept, end.id)

    def save_journal(self) -> None:
        """Make all that has come durable, so that another process can continue from here.

        In the midst of a document, and once shards are being completed for good, the last journal
        is the better one: an interrupt may have caught a shard between its two names.
        """
        is_between = self._is_inside_document or self._to_skip or self._is_finishing
        if is_between:
            return
        started = time.monotonic()
        for writer in self._writers.values():
            writer.sync()
        position = Position(
            finished=self._finished,
            modified_ns=self._modified_ns,
            num_documents=self._num_documents,
            num_bytes=self._num_bytes,
            hash=self._hash.value(),
        )
        splits: dict[str, SplitState]
        splits = {split: writer.state for split, writer in self._writers.items()}
        journal = Journal(identity=self._identity, position=position, splits=splits)
        write_record(self._folder / JOURNAL_NAME, journal)
        self._journal_time = time.monotonic()
        self._journal_cost = self._journal_time - started

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _write_documents(self, item: EncodedDocuments) -> None:
        is_validation = item.hashes < self._threshold
        chosen: Mapping[Split, npt.NDArray[np.bool_]]
        chosen = {"train": ~is_validation, "validation": is_validation}
        counts = np.diff(item.offsets)
        ends = {split: np.cumsum(np.where(mask, counts, 0)) for split, mask in chosen.items()}
        begin, num_documents = 0, len(counts)
        bytes_before = np.concatenate([[0], np.cumsum(item.lengths)])
        sources = deque(item.ends)
        while begin < num_documents or sources:
            end, full = num_documents, None
            for split, writer in self._writers.items():
                room = self._settings.shard_ids - writer.num_ids
                before = int(ends[split][begin - 1]) if begin else 0
                cut = int(np.searchsorted(ends[split], before + room)) + 1
                if cut <= end and cut <= num_documents:
                    end, full = cut, writer
            for split, writer in self._writers.items():
                mask = chosen[split][begin:end]
                chunks = gather(item.ids, item.offsets[begin : end + 1], mask)
                num_bytes = int(item.lengths[begin:end][mask].sum())
                writer.write(chunks, int(np.count_nonzero(mask)), num_bytes)
            while sources and sources[0][0] <= end:
                row, source = sources.popleft()
                num_bytes = int(bytes_before[row] - bytes_before[begin])
                self._advance(item.hashes[begin:row], num_bytes)
                self._end_source(source)
                begin = row
            num_bytes = int(bytes_before[end] - bytes_before[begin])
            self._advance(item.hashes[begin:end], num_bytes)
            if full is not None:
                full.finish_shard()
                self._save_journal_if_due(after=0.0)
            begin = end
        self._save_journal_if_due(after=_JOURNAL_SECONDS)

    def _write_part(self, item: EncodedDocuments) -> None:
        """A part of one long document; the last one counts it."""
        self._is_inside_document = not item.is_whole
        writer = self._writers["validation" if item.hashes[0] < self._threshold else "train"]
        num_bytes = int(item.lengths[0])
        writer.write([item.ids], int(item.is_whole), num_bytes)
        self._advance(item.hashes if item.is_whole else item.hashes[:0], num_bytes)
        if item.is_whole and writer.num_ids >= self._settings.shard_ids:
            writer.finish_shard()
            self._save_journal_if_due(after=0.0)

    def _skip(self, item: SkippedDocuments) -> None:
        self._advance(item.hashes, item.num_bytes)
        self._to_skip -= len(item.hashes)
        if self._to_skip == 0 and self._hash.value() != self._start.hash:
            raise _changed(item.path)

    def _advance(self, hashes: npt.NDArray[np.uint64], num_bytes: int) -> None:
        self._count(hashes, num_bytes)

    def _count(self, hashes: npt.NDArray[np.uint64], num_bytes: int) -> None:
        self._hash.add(hashes)
        self._num_documents += len(hashes)
        self._num_bytes += num_bytes

    def _begin_source(self) -> None:
        self._hash = HashTree()
        self._num_documents = self._num_bytes = 0

    def _end_source(self, end: SourceEnd) -> None:
        if self._to_skip:
            raise _changed(end.path)
        self._finished.append(
            SourceEntry(
                path=end.path,
                size=end.size,
                num_documents=self._num_documents,
                num_bytes=self._num_bytes,
                hash=self._hash.value(),
                unreadable=end.unreadable,
            )
        )
        self._modified_ns.append(end.modified_ns)
        self._begin_source()

    def _save_journal_if_due(self, after: float) -> None:
        wait = max(after, self._journal_cost / _JOURNAL_FRACTION)
        if time.monotonic() - self._journal_time >= wait:
            self.save_journal()

    def _remove_strays(self) -> None:
        """Delete what an earlier process wrote behind its last journal."""
        kept = set()
        for split, writer in self._writers.items():
            kept |= {shard.file for shard in writer.shards}
            if writer.num_ids:
                kept.add(shard_name(split, len(writer.shards)) + ".partial")
        for name in find_shard_files(self._folder):
            if name not in kept:
                (self._folder / name).unlink()


def _changed(path: str) -> DataError:
    return DataError(
        f"{path} has changed since part of it was encoded; put it back as it was, or start over "
        f"with --overwrite"
    )
