"""All sources of a part, one after another, as batches of documents."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np

from groundup.runtime import Progress, count_of
from groundup.text_files.chunk_stream import stream_of
from groundup.text_files.documents import (
    DocumentBatch,
    FindCut,
    Part,
    Piece,
    Reading,
    Source,
    UnreadableError,
    check_utf8,
    pack,
    split_documents,
)
from groundup.text_files.encodings import as_utf8, marked_encoding
from groundup.text_files.html import read_html
from groundup.text_files.opening import check_unchanged, explained_errors, open_source
from groundup.text_files.parquet import read_parquet
from groundup.text_files.parts import open_span
from groundup.text_files.plain_text import read_text
from groundup.text_files.records import read_delimited, read_json_lines
from groundup.text_files.sources import find_sources

BATCH_BYTES = 16 << 20
PIECE_BYTES = 64 << 20

_SMALL_BYTES = 64 << 10
_MOST_SOURCES = 4096

_READERS: dict[str, Callable[[IO[bytes], Reading, str], Iterator[bytes]]] = {
    "json_lines": read_json_lines,
    "delimited": read_delimited,
    "html": read_html,
    "parquet": read_parquet,
}

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
    # Of a document to be left out, nothing may have been given before.
    cut = find_cut if reading.errors != "skip" else None
    marks = reading.marks
    glue = marks[0] if marks else b""
    return _PartReader(part, reading, batch_bytes, cut, piece_bytes, marks, glue).batches()


@dataclass
class _PartReader:
    """Reads pieces of sources, and joins those that are small into batches."""

    part: Part
    reading: Reading
    batch_bytes: int
    find_cut: FindCut | None
    piece_bytes: int
    marks: list[bytes]
    glue: bytes
    done: int = 0
    """Bytes of the sources before the one that is read."""
    position: int = 0
    """How much of that one has been read."""
    pieces: list[Piece] = field(default_factory=list)
    ends: list[tuple[int, Source, str | None]] = field(default_factory=list)
    num_bytes: int = 0
    num_rows: int = 0
    """Of the pieces that wait."""

    def batches(self) -> Iterator[DocumentBatch]:
        for source in self.part.sources:
            note = None
            try:
                yield from self._join(source)
            except UnreadableError as error:
                if self.reading.errors != "skip":
                    raise
                note = str(error)
                _log.warning("skipped: %s", note)
            self.done += self.part.num_bytes if self.part.span else source.size or 0
            self.position = 0
            self.ends.append((self.num_rows, source, note))
            if len(self.ends) >= _MOST_SOURCES:
                yield self._take()
        if self.pieces or self.ends:
            yield self._take()

    def _join(self, source: Source) -> Iterator[DocumentBatch]:
        num_left_out = 0
        for piece in self._read_source(source):
            num_found = len(piece.bounds)
            piece = check_utf8(piece, self.reading.errors, source, self.glue)
            num_left_out += num_found - len(piece.bounds)
            if not len(piece.bounds):
                continue
            is_small = len(piece.data) < self.batch_bytes // 4 and not piece.is_alone
            if self.pieces and (not is_small or self.num_bytes >= self.batch_bytes // 2):
                yield self._take()
            self.pieces.append(piece)
            self.num_bytes += len(piece.data)
            self.num_rows += len(piece.bounds)
            if not is_small:
                yield self._take()
        if num_left_out:
            _log.warning("%s: left out %s", source, count_of(num_left_out, "document"))

    def _take(self) -> DocumentBatch:
        """All that waits as one batch; a single piece is not copied."""
        pieces, ends = self.pieces, self.ends
        self.pieces, self.ends, self.num_bytes, self.num_rows = [], [], 0, 0
        read_bytes = self.done + self.position
        if not pieces:
            return DocumentBatch(b"", np.empty((0, 2), np.int64), ends, read_bytes)
        data, bounds = pieces[0].data, pieces[0].bounds
        if len(pieces) > 1:
            data, places = pack([piece.data for piece in pieces], self.glue)
            begins = zip(pieces, places[:, 0].tolist(), strict=True)
            bounds = np.concatenate([piece.bounds + begin for piece, begin in begins])
        continues = pieces[-1].continues
        return DocumentBatch(data, np.ascontiguousarray(bounds), ends, read_bytes, continues)

    def _read_source(self, source: Source) -> Iterator[Piece]:
        span = self.part.span
        is_plain = source.format == "text" and not source.compression and not self.reading.encoding
        is_local = is_plain and not source.is_remote and not span
        is_small = is_local and 0 < (source.size or 0) <= _SMALL_BYTES
        if is_small and (piece := _read_small(source, self.marks)):
            yield piece
            return
        with open_source(source) as (stream, raw):
            is_seekable = raw.seekable() and not span
            for piece in self._read_stream(source, stream, raw):
                self.position = raw.tell() if is_seekable else 0
                yield piece

    def _read_stream(self, source: Source, stream: IO[bytes], raw: IO[bytes]) -> Iterator[Piece]:
        reading, span, begin = self.reading, self.part.span, 0
        marked = marked_encoding(stream.peek(4))  # type: ignore[attr-defined]
        if marked and span and span[0]:
            # The part that has the mark reads all of the file.
            return
        if span is not None and not marked:
            marks = self.marks if source.format == "text" else [b"\n"]
            stream, begin = open_span(raw, span, source.size or 0, marks)
        if (encoding := marked or reading.encoding) and source.format != "parquet":
            stream = stream_of(as_utf8(stream, encoding, reading.errors, str(source)))
        if source.format == "text":
            sizes = self.batch_bytes, self.find_cut, self.piece_bytes
            yield from read_text(stream, self.marks, *sizes, begin)
            return
        name = f"{source} after byte {begin}," if begin else str(source)
        texts = _READERS[source.format](stream, reading, name)
        while waiting := list(_take_bytes(texts, self.batch_bytes)):
            data, bounds = pack(waiting, self.glue)
            yield Piece(data, bounds[bounds[:, 1] > bounds[:, 0]])


def _take_bytes(texts: Iterator[bytes], num_bytes: int) -> Iterator[bytes]:
    """Yields texts until they add up to this many bytes."""
    for text in texts:
        yield text
        num_bytes -= len(text)
        if num_bytes <= 0:
            return


def _read_small(source: Source, marks: Sequence[bytes]) -> Piece | None:
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
    return Piece(data, bounds, mark)


def read_document_batches(
    inputs: Sequence[str | os.PathLike[str]],
    *,
    batch_bytes: int = BATCH_BYTES,
    progress: Progress | None = None,
    **reading: Any,
) -> Iterator[DocumentBatch]:
    """Yield the documents of files, folders, globs or `-`; `reading` are fields of `Reading`."""
    how = Reading(**reading)
    part = Part(tuple(find_sources(inputs)))
    is_known = all(source.size is not None for source in part.sources)
    for batch in read(part, how, batch_bytes=batch_bytes):
        if len(batch.bounds):
            yield batch
        if progress is not None:
            progress(batch.read_bytes, part.num_bytes if is_known else None)
