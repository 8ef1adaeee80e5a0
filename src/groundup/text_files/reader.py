"""All sources of a part, one after another, as batches of documents."""

import dataclasses
import io
import itertools
import logging
import os
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple

import numpy as np

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
    as_utf8,
    check_utf8,
    find_encoding,
    guess_encoding,
    marked_encoding,
)
from groundup.text_files.formats import FORMATS
from groundup.text_files.opening import check_unchanged, explained_errors, open_source, stream_of
from groundup.text_files.parts import open_span
from groundup.text_files.plain_text import read_text
from groundup.text_files.records import LONGEST_RECORD_BYTES
from groundup.text_files.sources import classify, find_sources, show_names

BATCH_BYTES = 16 << 20
PIECE_BYTES = 64 << 20

_SMALL_BYTES = 64 << 10
_MOST_SOURCES = 4096
_MOST_REMARKS = 5
# After pieces of a long document whose rest cannot be read.
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

    In plain text a document is what stands between separators or file ends, byte for byte: only a
    byte order mark is taken off. In JSON lines, tables and Parquet each record is one, of HTML each
    page; empty ones are left out. Small files share a batch.

    find_cut: cuts documents of more than `piece_bytes` into pieces; without it they stay whole.
    """
    sizes = _Sizes(batch_bytes, find_cut, piece_bytes)
    waiting = _Waiting(reading.glue)
    is_inside = False
    for source in part.sources:
        notes: list[str] = []
        num_left_out = 0
        try:
            for found in _read_source(source, part.span, reading, notes, sizes):
                waiting.position = found.read_bytes
                piece = check_utf8(found, source, reading, notes)
                num_left_out += len(found.bounds) - len(piece.bounds)
                if not len(piece.bounds):
                    continue
                is_small = len(piece.data) < batch_bytes // 4 and not piece.is_alone
                if waiting.pieces and (not is_small or waiting.num_bytes >= batch_bytes // 2):
                    yield waiting.take()
                waiting.add(piece)
                is_inside = piece.continues
                if not is_small:
                    yield waiting.take()
        except (DataError, MissingExtraError) as error:
            if reading.errors != "skip":
                raise
            notes.append(str(error).removeprefix(str(source)).lstrip(" ,"))
            if is_inside:
                # The document ends here.
                waiting.add(_END_OF_DOCUMENT)
                yield waiting.take()
            is_inside = False
        if num_left_out:
            notes.append(f"left out {count_of(num_left_out, 'document')}")
        note = "; ".join(notes) or None
        if note:
            _log.warning("%s: %s", source, note)
        waiting.end(source, note, part.num_bytes if part.span else source.size or 0)
        if len(waiting.ends) >= _MOST_SOURCES:
            yield waiting.take()
    if waiting.pieces or waiting.ends:
        yield waiting.take()


class _Waiting:
    """Pieces, small ones of several sources, that become one batch."""

    def __init__(self, glue: bytes) -> None:
        self._glue = glue
        self.position = self._done = 0
        """How much of this source has been read, and of those before."""
        self._clear()

    def _clear(self) -> None:
        self.pieces: list[DocumentBatch] = []
        self.ends: list[tuple[int, Source, str | None]] = []
        self.num_bytes = self._num_rows = 0

    def add(self, piece: DocumentBatch) -> None:
        self.pieces.append(piece)
        self.num_bytes += len(piece.data)
        self._num_rows += len(piece.bounds)

    def end(self, source: Source, note: str | None, num_bytes: int) -> None:
        self.ends.append((self._num_rows, source, note))
        self._done, self.position = self._done + num_bytes, 0

    def take(self) -> DocumentBatch:
        """All that waits as one batch; a single piece is not copied."""
        pieces, ends, read_bytes = self.pieces, self.ends, self._done + self.position
        self._clear()
        if not pieces:
            return DocumentBatch(b"", np.empty((0, 2), np.int64), ends, read_bytes)
        data, bounds = pieces[0].data, pieces[0].bounds
        if len(pieces) > 1:
            data, places = pack([piece.data for piece in pieces], self._glue)
            begins = zip(pieces, places[:, 0].tolist(), strict=True)
            bounds = np.concatenate([piece.bounds + begin for piece, begin in begins])
        continues = pieces[-1].continues
        return DocumentBatch(data, np.ascontiguousarray(bounds), ends, read_bytes, continues)


def _read_source(
    source: Source,
    span: tuple[int, int] | None,
    reading: Reading,
    notes: list[str],
    sizes: "_Sizes",
) -> Iterator[DocumentBatch]:
    marks = reading.marks
    is_plain = source.format == "text" and not source.compression and not reading.encoding
    is_small = 0 < (source.size or 0) <= _SMALL_BYTES and not source.is_remote and not span
    if is_plain and is_small and (piece := _read_small(source, marks)):
        yield piece
        return
    with open_source(source) as (stream, raw):
        is_seekable = raw.seekable() and not span
        if source.format == "archive":
            pieces = _read_members(source, stream, reading, notes, sizes)
        else:
            pieces = _read_stream(source, stream, raw, span, reading, notes, sizes)
        for piece in pieces:
            yield piece._replace(read_bytes=raw.tell() if is_seekable else 0)


def _read_stream(
    source: Source,
    stream: IO[bytes],
    raw: IO[bytes] | None,
    span: tuple[int, int] | None,
    reading: Reading,
    notes: list[str],
    sizes: "_Sizes",
) -> Iterator[DocumentBatch]:
    """The documents of an opened source, or of a file in an archive, which has no `raw` file."""
    from groundup._native import find_invalid_utf8

    kind, marks, begin = FORMATS[source.format], reading.marks, 0
    head = b"" if kind.is_binary else stream.peek(1)  # type: ignore[attr-defined]
    decided = marked_encoding(head)
    if not decided and not reading.encoding and find_invalid_utf8(head) >= 0:
        decided = guess_encoding(head)
    if decided and span and span[0]:
        # The part that has the beginning reads all of the file.
        return
    if decided not in ("utf-16", "utf-32", None):
        notes.append(f"read as {decided}")
    if raw is not None and span is not None and not decided:
        starts = [b"\n"] if kind.read else marks
        stream, begin = open_span(raw, span, source.size or 0, starts)
    encoding = decided or reading.encoding
    if not kind.is_binary and (kind.read or encoding or raw is None):
        find = guess_encoding if span is None else lambda chunk: find_encoding(source)
        utf8 = as_utf8(stream, encoding, reading.errors, str(source), find, notes)
        stream = stream_of(utf8)
    if kind.read is None:
        yield from read_text(stream, marks, *sizes, begin)
    else:
        name = f"{source} after byte {begin}," if begin else str(source)
        texts = kind.read(stream, reading, name, notes)
        yield from _pack_pieces(texts, sizes.batch_bytes, reading.glue)


def _read_members(
    source: Source, stream: IO[bytes], reading: Reading, notes: list[str], sizes: "_Sizes"
) -> Iterator[DocumentBatch]:
    """The documents of an archive's files; one that fails is left out by itself."""
    left_out: list[str] = []
    remarks: list[str] = []
    for name, content in open_members(stream, source):
        kind, compression = classify(name)
        if any(one.startswith((".", "__MACOSX")) for one in name.split("/")):
            continue
        if kind in (None, "archive") or compression is not None:
            left_out.append(name)
            continue
        member, own = Source(f"{source}/{name}", kind or "text"), list[str]()
        is_inside = False
        try:
            if FORMATS[member.format].is_binary:
                content = io.BytesIO(content.read(LONGEST_RECORD_BYTES))
            for piece in _read_stream(member, content, None, None, reading, own, sizes):
                is_inside = piece.continues
                # It has no place in the file.
                yield piece._replace(offset=None)
        except (DataError, MissingExtraError) as error:
            if reading.errors != "skip" or isinstance(error, LimitError):
                raise
            own.append(str(error).removeprefix(str(member)).removeprefix(str(source)).lstrip(" ,"))
            if is_inside:
                yield _END_OF_DOCUMENT
        remarks += [f"{name}: {one}" for one in own]
    if left_out:
        remarks.append(f"left out as no text: {show_names(left_out)}")
    notes += remarks[:_MOST_REMARKS]
    if len(remarks) > _MOST_REMARKS:
        notes.append(f"{len(remarks) - _MOST_REMARKS:,} more remarks")


class _Sizes(NamedTuple):
    """How much is in a batch, and in a piece of a long document."""

    batch_bytes: int
    find_cut: FindCut | None
    piece_bytes: int


def _pack_pieces(texts: Iterator[bytes], num_bytes: int, glue: bytes) -> Iterator[DocumentBatch]:
    """Texts together until they add up to this many bytes."""
    waiting: list[bytes] = []
    size = 0
    for text in itertools.chain(texts, [None]):
        if text is not None:
            waiting.append(text)
            size += len(text)
        if waiting and (text is None or size >= num_bytes):
            data, bounds = pack(waiting, glue)
            yield DocumentBatch(data, bounds[bounds[:, 1] > bounds[:, 0]])
            waiting, size = [], 0


def _read_small(source: Source, marks: Sequence[bytes]) -> DocumentBatch | None:
    """A small file at once: the general way, left for marked ones, takes longer than its text."""
    with explained_errors(source):
        file = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(file, (source.size or 0) + 1)
            check_unchanged(source, file)
        finally:
            os.close(file)
    if marked_encoding(data):
        return None
    mark = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    data = data[mark:] if mark else data
    bounds = np.array([[0, len(data)]])
    if not data or any(one in data for one in marks):
        bounds = split_documents(data, marks)
    return DocumentBatch(data, bounds, offset=mark)


def nothing_in(sources: Sequence[Source], reading: Reading) -> DataError:
    """Why there is no text: the first mistake is raised, if there is one."""
    for _ in read(Part(tuple(sources)), dataclasses.replace(reading, errors="strict")):
        pass
    return DataError(f"{show_names([*map(str, sources)])} holds no text; name a file that does")


def read_document_batches(
    inputs: Sequence[str | os.PathLike[str]],
    *,
    batch_bytes: int = BATCH_BYTES,
    progress: Progress | None = None,
    **reading: Any,
) -> Iterator[DocumentBatch]:
    """Yield the documents of files, folders, globs or `-`; `reading` are fields of `Reading`."""
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
        raise nothing_in(part.sources, how)
