"""The documents of all sources in batches of a good size to encode, each document with its hash.

Small files are put together into one batch, and what an earlier process has written is passed over.
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from groundup.data.prepare.journal import Position
from groundup.data.shards.index import PrepareSettings, hash_each
from groundup.errors import DataError
from groundup.text_files import (
    STDIN,
    DocumentBatch,
    EmptyFileError,
    OnError,
    SkippedFiles,
    SmallFile,
    Source,
    TextPart,
    UnreadableError,
    bounds_of,
    read_document_batches,
    read_small_files,
)
from groundup.text_files.opening import find_size
from groundup.text_files.remote import RemoteFile

_MOST_SOURCES = 4096

Stamp = tuple[int | None, int | None]

UNKNOWN: Stamp = (None, None)
"""The stamp of what is not a regular file."""


@dataclass(frozen=True)
class SkippedDocuments:
    """Documents at the beginning of a source that an earlier process has written."""

    path: str
    hashes: npt.NDArray[np.uint64]
    num_bytes: int


class SourceEnd(NamedTuple):
    """All documents of a source have come, or all that can be read of it."""

    path: str
    size: int | None
    modified_ns: int | None
    unreadable: str | None = None


@dataclass(frozen=True, eq=False)
class SourceBatch:
    """Documents of one or more sources; `ends` says after how many of them a source is over.

    `done` is how many bytes of the sources have been read with it.
    """

    data: bytes | memoryview
    bounds: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]
    done: int
    ends: list[tuple[int, SourceEnd]] = field(default_factory=list)


def read_sources(
    sources: list[Source],
    settings: PrepareSettings,
    batch_bytes: int,
    position: Position,
    on_error: OnError,
    part: TextPart | None = None,
) -> Iterator[SourceBatch | SkippedDocuments]:
    """Read from `position` on; the documents before it in its source come as skipped ones.

    sources: the files to read, in order.
    settings: how their text is read.
    batch_bytes: about how much text a batch holds.
    position: where to begin.
    on_error: "skip" passes over files that cannot be read.
    part: of which these are the sources, of a single one perhaps only a range.
    """
    small: list[SourceBatch] = []
    num_bytes = num_ends = 0
    try:
        for item in _read(sources, settings, batch_bytes, position, on_error, part):
            is_small = isinstance(item, SourceBatch) and len(item.data) < batch_bytes // 4
            is_full = num_bytes >= batch_bytes // 2 or num_ends >= _MOST_SOURCES
            if small and (not is_small or is_full):
                yield _join(small)
                small, num_bytes, num_ends = [], 0, 0
            if isinstance(item, SourceBatch) and is_small:
                small.append(item)
                num_bytes += len(item.data)
                num_ends += len(item.ends)
            else:
                yield item
    except Exception:
        # What was read before the error is good, and need not be read again.
        if small:
            yield _join(small)
        raise
    if small:
        yield _join(small)


def read_source(
    source: Source,
    settings: PrepareSettings,
    batch_bytes: int = 16 << 20,
    part: TextPart | None = None,
) -> Iterator[DocumentBatch]:
    """The documents of one source, as the settings say, or of a range of it."""
    return read_document_batches(
        [source],
        separators=settings.separators,
        field=settings.field,
        column=settings.column,
        errors=settings.errors,
        encoding=settings.encoding,
        batch_bytes=batch_bytes,
        part=part,
    )


def path_text(source: str | os.PathLike[str]) -> str:
    """A path or address as UTF-8 can hold it."""
    return os.fsencode(source).decode("utf-8", "backslashreplace")


def check_unchanged(end: SourceEnd, before: Stamp) -> None:
    """Raise DataError for a source that is over and was another when it was begun."""
    if (end.size, end.modified_ns) != before:
        raise _changed(end.path)


def stamp(source: Source, on_error: OnError = "stop") -> Stamp:
    """Size and time of a file, which tell that it is still the same; unknown for pipes and such."""
    if source == STDIN:
        return UNKNOWN
    if isinstance(source, RemoteFile):
        # The time is not told by all: what has the same size is read again and compared.
        return find_size(source), None
    try:
        status = os.stat(source)
    except OSError as error:
        if on_error == "skip":
            return UNKNOWN
        raise DataError(f"{source} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        return UNKNOWN
    return status.st_size, status.st_mtime_ns


def _read(
    sources: list[Source],
    settings: PrepareSettings,
    batch_bytes: int,
    position: Position,
    on_error: OnError,
    part: TextPart | None,
) -> Iterator[SourceBatch | SkippedDocuments]:
    is_range = part is not None and part.span is not None
    to_skip = position.num_documents
    read = sum(entry.size or 0 for entry in position.finished)
    number = len(position.finished)
    unreadable, empty = SkippedFiles("cannot be read"), SkippedFiles("empty")
    while number < len(sources):
        if not to_skip and not is_range:
            small = read_small_files(sources, number, batch_bytes // 2, settings.encoding)
            if small:
                read += sum(len(file.text) for file in small)
                yield _join_files(sources[number : number + len(small)], small, settings, read)
                number += len(small)
                continue
        source = sources[number]
        number += 1
        before, reason = stamp(source, on_error), None
        try:
            for batch in read_source(source, settings, batch_bytes, part):
                hashes = hash_each(batch.data, batch.bounds)
                skip = min(to_skip, len(hashes))
                if skip:
                    to_skip -= skip
                    num_bytes = int(np.diff(batch.bounds[:skip]).sum())
                    yield SkippedDocuments(path_text(source), hashes[:skip], num_bytes)
                if skip < len(hashes):
                    done = read + batch.read_bytes
                    yield SourceBatch(batch.data, batch.bounds[skip:], hashes[skip:], done)
        except EmptyFileError:
            if on_error == "stop" and len(sources) == 1 and part is None:
                raise
            empty.add(str(source))
        except UnreadableError as error:
            if on_error == "stop":
                raise
            reason = str(error)
            unreadable.add(reason)
        if stamp(source, on_error) != before:
            raise _changed(source)
        read += before[0] or 0
        if part is None or part.is_end:
            yield _only_end(SourceEnd(path_text(source), *before, reason), read)
    for files in (unreadable, empty):
        files.warn()


def _changed(source: object) -> DataError:
    return DataError(f"{source} changed while it was being read; run the command again")


def _join_files(
    sources: list[Source], files: list[SmallFile], settings: PrepareSettings, done: int
) -> SourceBatch:
    separators = [separator.encode() for separator in settings.separators]
    bounds, ends, begin, row = [], [], 0, 0
    for source, (text, modified_ns) in zip(sources, files, strict=True):
        found = bounds_of(text, separators)
        bounds.append(found + begin)
        begin += len(text)
        row += len(found)
        ends.append((row, SourceEnd(path_text(source), len(text), modified_ns)))
    data = b"".join([file.text for file in files])
    all_bounds = np.concatenate(bounds)
    return SourceBatch(data, all_bounds, hash_each(data, all_bounds), done, ends)


def _only_end(end: SourceEnd, done: int) -> SourceBatch:
    nothing = np.empty(0, np.uint64)
    return SourceBatch(b"", np.empty((0, 2), np.int64), nothing, done, [(0, end)])


def _join(batches: list[SourceBatch]) -> SourceBatch:
    """One batch of many; a single one with documents is not copied."""
    rows = np.cumsum([0, *(len(batch.hashes) for batch in batches)]).tolist()
    ends = [
        (row + after, end)
        for row, batch in zip(rows, batches, strict=False)
        for after, end in batch.ends
    ]
    filled = [batch for batch in batches if len(batch.hashes)]
    if len(filled) == 1:
        return replace(filled[0], ends=ends, done=batches[-1].done)
    begins = np.cumsum([0, *(len(batch.data) for batch in batches)]).tolist()
    bounds = [batch.bounds + begin for begin, batch in zip(begins, batches, strict=False)]
    return SourceBatch(
        b"".join(batch.data for batch in batches),
        np.concatenate(bounds),
        np.concatenate([batch.hashes for batch in batches]),
        batches[-1].done,
        ends,
    )
