"""Read the sources of a part, one after another, as batches of documents."""

import dataclasses
import io
import itertools
import logging
import os
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, NamedTuple

import numpy as np

from groundup._native import find_invalid_utf8
from groundup.errors import DataError, MissingExtraError
from groundup.runtime import Progress, count_of
from groundup.text_files.archives import LimitError, open_members
from groundup.text_files.documents import (
    DocumentBatch,
    FindCut,
    Part,
    Reading,
    Source,
    pack,
    split_documents,
)
from groundup.text_files.encodings import (
    NOT_UTF8,
    as_utf8,
    drop_invalid,
    find_encoding,
    guess_encoding,
    is_utf8,
    marked_encoding,
)
from groundup.text_files.formats import FORMATS
from groundup.text_files.opening import check_unchanged, explained_errors, open_source, stream_of
from groundup.text_files.parts import open_span
from groundup.text_files.plain_text import read_text
from groundup.text_files.records import MAX_RECORD_BYTES
from groundup.text_files.sources import classify, find_sources, show_names

BATCH_BYTES = 16 << 20
PIECE_BYTES = 64 << 20

_SMALL_BYTES = 64 << 10
_MAX_SOURCES = 4096
_MAX_REMARKS = 5
# Ends a long document if the rest of it cannot be read.
_END_OF_DOCUMENT = DocumentBatch(b"", np.zeros((1, 2), np.int64), is_alone=True)

_log = logging.getLogger(__name__)


def read(
    part: Part,
    reading: Reading,
    *,
    batch_bytes: int = BATCH_BYTES,
    find_cut: FindCut | None = None,
    piece_bytes: int = PIECE_BYTES,
) -> Iterator[DocumentBatch]:
    """Yield the documents of a part in order, in batches of about `batch_bytes`.

    A plain text document is the exact text between separators or file ends, without a byte order
    mark. In JSON lines, tables and Parquet each record is a document; in HTML, each page. Empty
    documents are skipped, and small files share a batch.

    find_cut: cuts documents longer than `piece_bytes` into pieces; by default they stay whole.
    """
    reader = _Reader(reading, batch_bytes, find_cut, piece_bytes)
    pending = _BatchBuilder(reading.glue, batch_bytes)
    for source in part.sources:
        notes: list[str] = []
        for piece in reader.checked(reader.read(source, part.span, notes), source, notes):
            yield from pending.add(piece)
        note = "; ".join(dict.fromkeys(notes)) or None
        if note:
            _log.warning("%s: %s", source, note)
        yield from pending.end(source, note, part.num_bytes if part.span else source.size or 0)
    yield from pending.take()


class _BatchBuilder:
    """Joins small pieces, of one or several sources, into batches."""

    def __init__(self, glue: bytes, batch_bytes: int) -> None:
        self._glue, self._batch_bytes = glue, batch_bytes
        # Bytes read of the current source, and of all sources before.
        self._position = self._done = 0
        self._clear()

    def _clear(self) -> None:
        self._pieces: list[DocumentBatch] = []
        self._ends: list[tuple[int, Source, str | None]] = []
        self._num_bytes = self._num_rows = 0

    def add(self, piece: DocumentBatch) -> Iterator[DocumentBatch]:
        self._position = piece.read_bytes
        if not len(piece.bounds):
            return
        is_small = len(piece.data) < self._batch_bytes // 4 and not piece.is_alone
        if self._pieces and (not is_small or self._num_bytes >= self._batch_bytes // 2):
            yield from self.take()
        self._pieces.append(piece)
        self._num_bytes += len(piece.data)
        self._num_rows += len(piece.bounds)
        if not is_small:
            yield from self.take()

    def end(self, source: Source, note: str | None, num_bytes: int) -> Iterator[DocumentBatch]:
        self._ends.append((self._num_rows, source, note))
        self._done, self._position = self._done + num_bytes, 0
        if len(self._ends) >= _MAX_SOURCES:
            yield from self.take()

    def take(self) -> Iterator[DocumentBatch]:
        """Yield all pending pieces as one batch; a single piece is not copied."""
        pieces, ends, read_bytes = self._pieces, self._ends, self._done + self._position
        self._clear()
        if not pieces:
            if ends:
                yield DocumentBatch(b"", np.empty((0, 2), np.int64), ends, read_bytes)
            return
        data, bounds = pieces[0].data, pieces[0].bounds
        if len(pieces) > 1:
            data, joined = pack([piece.data for piece in pieces], self._glue)
            begins = zip(pieces, joined[:, 0].tolist(), strict=True)
            bounds = np.concatenate([piece.bounds + begin for piece, begin in begins])
        continues = pieces[-1].continues
        yield DocumentBatch(data, np.ascontiguousarray(bounds), ends, read_bytes, continues)


class _Reader(NamedTuple):
    """Yields the documents of a source; `notes` collects remarks about it."""

    reading: Reading
    batch_bytes: int
    find_cut: FindCut | None
    piece_bytes: int

    def checked(
        self, pieces: Iterator[DocumentBatch], source: Source, notes: list[str], archive: str = ""
    ) -> Iterator[DocumentBatch]:
        """Handle invalid UTF-8 and unreadable files; notes what was skipped, and why."""
        num_dropped = 0
        is_inside = False
        try:
            for piece in pieces:
                valid = drop_invalid(piece, source, self.reading)
                num_dropped += len(piece.bounds) - len(valid.bounds)
                is_inside = valid.continues
                yield valid
        except (DataError, MissingExtraError) as error:
            if self.reading.errors != "skip" or (archive and isinstance(error, LimitError)):
                raise
            reason = str(error).removeprefix(str(source)).removeprefix(archive)
            notes.append(reason.lstrip(" ,"))
            if is_inside:
                # The document ends here.
                yield _END_OF_DOCUMENT
        if num_dropped:
            is_text = FORMATS[source.format].read is None
            notes += [NOT_UTF8] * is_text + [f"skipped {count_of(num_dropped, 'document')}"]

    def read(
        self, source: Source, span: tuple[int, int] | None, notes: list[str]
    ) -> Iterator[DocumentBatch]:
        is_plain = source.format == "text" and not source.compression and not self.reading.encoding
        is_small = 0 < (source.size or 0) <= _SMALL_BYTES and not source.is_remote and not span
        if is_plain and is_small and (piece := _read_small(source, self.reading.marks)):
            yield piece
            return
        with open_source(source) as (stream, raw):
            is_seekable = raw.seekable() and not span
            if source.format == "archive":
                pieces = self._read_members(source, stream, notes)
            elif span is None:
                pieces = self._read_stream(source, stream, notes)
            else:
                pieces = self._read_span(source, raw, span, notes)
            for piece in pieces:
                yield piece._replace(read_bytes=raw.tell() if is_seekable else 0)

    def _read_stream(
        self,
        source: Source,
        stream: IO[bytes],
        notes: list[str],
        begin: int = 0,
        guess: Callable[[bytes], str | None] = guess_encoding,
    ) -> Iterator[DocumentBatch]:
        """Yield the documents of an open source, or of a range of one that begins at `begin`."""
        reading, kind = self.reading, FORMATS[source.format]
        head = b"" if kind.read else stream.peek(1)  # type: ignore[attr-defined]
        if reading.errors != "replace" and is_utf8(head):
            # The common case, without a copy.
            stream.read(3 * (not begin and head.startswith(BOM_UTF8)))
        elif not kind.is_binary:
            stream = stream_of(as_utf8(stream, source, reading, notes, guess, not begin))
        if kind.read is None:
            sizes = self.batch_bytes, self.find_cut, self.piece_bytes
            yield from read_text(stream, reading.marks, notes, *sizes)
        else:
            name = f"{source} after byte {begin}," if begin else str(source)
            texts = kind.read(stream, reading, name, notes)
            yield from _pack_pieces(texts, self.batch_bytes, reading.glue)

    def _read_span(
        self, source: Source, raw: IO[bytes], span: tuple[int, int], notes: list[str]
    ) -> Iterator[DocumentBatch]:
        """Yield the documents that begin in a range of a source.

        Boundaries cannot be found in other encodings: the first part reads the whole source.
        """
        head = raw.peek(1)  # type: ignore[attr-defined]
        if marked_encoding(head) or (find_invalid_utf8(head) >= 0 and guess_encoding(head)):
            if not span[0]:
                yield from self._read_stream(source, raw, notes)
            return
        marks = [b"\n"] if FORMATS[source.format].read else self.reading.marks
        stream, begin = open_span(raw, span, source.size or 0, marks)
        yield from self._read_stream(source, stream, notes, begin, lambda _: find_encoding(source))

    def _read_members(
        self, source: Source, stream: IO[bytes], notes: list[str]
    ) -> Iterator[DocumentBatch]:
        """Yield the documents of an archive's files; unreadable ones are skipped individually."""
        skipped: dict[str, list[str]] = {}
        remarks: list[str] = []
        for name, content in open_members(stream, source):
            kind, compression = classify(name)
            if any(one.startswith((".", "__MACOSX")) for one in name.split("/")):
                continue
            if kind in (None, "archive") or compression is not None:
                reason = "compressed again" if kind else "unknown suffix"
                skipped.setdefault(reason, []).append(name)
                continue
            member, own = Source(f"{source}/{name}", kind or "text"), list[str]()
            if FORMATS[member.format].is_binary:
                content = io.BytesIO(content.read(MAX_RECORD_BYTES))
            pieces = self._read_stream(member, content, own)
            yield from self.checked(pieces, member, own, str(source))
            remarks += [f"{name}: {one}" for one in own]
        remarks += [f"skipped ({why}): {show_names(names)}" for why, names in skipped.items()]
        notes += remarks[:_MAX_REMARKS]
        if len(remarks) > _MAX_REMARKS:
            notes.append(f"{len(remarks) - _MAX_REMARKS:,} more remarks")


def _pack_pieces(texts: Iterator[bytes], num_bytes: int, glue: bytes) -> Iterator[DocumentBatch]:
    """Group texts into pieces of at least this many bytes."""
    pending: list[bytes] = []
    size = 0
    for text in itertools.chain(texts, [None]):
        if text is not None:
            pending.append(text)
            size += len(text)
        if pending and (text is None or size >= num_bytes):
            data, bounds = pack(pending, glue)
            yield DocumentBatch(data, bounds[bounds[:, 1] > bounds[:, 0]])
            pending, size = [], 0


def _read_small(source: Source, marks: Sequence[bytes]) -> DocumentBatch | None:
    """Read a small file in one go, which saves the overhead of streams; None if not UTF-8."""
    with explained_errors(source):
        file = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(file, (source.size or 0) + 1)
            check_unchanged(source, file)
        finally:
            os.close(file)
    if marked_encoding(data) or find_invalid_utf8(data) >= 0:
        return None
    data = data.removeprefix(BOM_UTF8)
    bounds = np.array([[0, len(data)]])
    if not data or any(one in data for one in marks):
        bounds = split_documents(data, marks)
    return DocumentBatch(data, bounds)


def no_text_error(sources: Sequence[Source], reading: Reading) -> DataError:
    """Return the error for sources without any text; raises the first error in them, if any."""
    for _ in read(Part(tuple(sources)), dataclasses.replace(reading, errors="strict")):
        pass
    return DataError(f"{show_names([*map(str, sources)])} has no text; name a file that does")


def read_document_batches(
    inputs: Sequence[str | os.PathLike[str]],
    *,
    batch_bytes: int = BATCH_BYTES,
    progress: Progress | None = None,
    **reading: Any,
) -> Iterator[DocumentBatch]:
    """Yield the documents of files, folders, globs or `-`; reading: see `Reading`."""
    how = Reading(**reading)
    part = Part(tuple(find_sources(inputs, how)))
    is_empty = True
    for batch in read(part, how, batch_bytes=batch_bytes):
        if len(batch.bounds):
            is_empty = False
            yield batch
        if progress is not None:
            progress(batch.read_bytes, part.num_bytes or None)
    if is_empty and how.errors == "skip":
        raise no_text_error(part.sources, how)
