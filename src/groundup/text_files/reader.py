"""All sources of a part, one after another, as batches of documents."""

import io
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, NamedTuple

import numpy as np

from groundup.runtime import Progress, count_of
from groundup.text_files.documents import (
    DocumentBatch,
    FindCut,
    Part,
    Piece,
    Reading,
    Source,
    UnreadableError,
    check_utf8,
    drop_empty,
    pack,
    split_documents,
)
from groundup.text_files.encodings import as_utf8
from groundup.text_files.html import read_html
from groundup.text_files.opening import check_unchanged, open_source
from groundup.text_files.parquet import read_parquet
from groundup.text_files.parts import open_span
from groundup.text_files.plain_text import read_text
from groundup.text_files.records import read_delimited, read_json_lines
from groundup.text_files.sources import find_sources

BATCH_BYTES = 16 << 20
PIECE_BYTES = 64 << 20

_SMALL_BYTES = 64 << 10
_MOST_SOURCES = 4096

_READERS: dict[str, Callable[[IO[bytes], Reading, str], Iterator[bytes | None]]] = {
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
    page. Empty documents are left out. Small files share a batch.

    find_cut: cuts documents of more than `piece_bytes` into pieces; without it they stay whole.
    """
    glue = (reading.marks or [b""])[0]
    options = _Options(reading, batch_bytes, find_cut, piece_bytes, glue)
    joiner = _Joiner(glue)
    done = 0
    for source in part.sources:
        note = None
        try:
            for piece, position in _read_source(source, part.span, options):
                is_small = len(piece.data) < batch_bytes // 4 and not piece.is_alone
                if (joiner.pieces and not is_small) or joiner.num_bytes >= batch_bytes // 2:
                    yield joiner.take(done + position)
                joiner.add(piece)
                if not is_small:
                    yield joiner.take(done + position, continues=piece.continues)
        except UnreadableError as error:
            if reading.errors != "skip":
                raise
            note = str(error)
            _log.warning("skipped: %s", note)
        done += part.num_bytes if part.span is not None else source.size or 0
        joiner.ends.append((joiner.num_rows, source, note))
        if len(joiner.ends) >= _MOST_SOURCES:
            yield joiner.take(done)
    if joiner.pieces or joiner.ends:
        yield joiner.take(done)


class _Options(NamedTuple):
    reading: Reading
    batch_bytes: int
    find_cut: FindCut | None
    piece_bytes: int
    glue: bytes


class _Joiner:
    """Pieces and ends of sources that wait to become a batch."""

    def __init__(self, glue: bytes) -> None:
        self._glue = glue
        self._clear()

    def _clear(self) -> None:
        self.pieces: list[Piece] = []
        self.ends: list[tuple[int, Source, str | None]] = []
        self.num_bytes = self.num_rows = 0

    def add(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self.num_bytes += len(piece.data)
        self.num_rows += len(piece.bounds)

    def take(self, read_bytes: int, *, continues: bool = False) -> DocumentBatch:
        """All that waits as one batch; a single piece is not copied."""
        pieces, ends = self.pieces, self.ends
        data: bytes | memoryview = b""
        bounds = np.empty((0, 2), np.int64)
        if len(pieces) == 1:
            data, bounds = pieces[0].data, pieces[0].bounds
        elif pieces:
            data, places = pack([piece.data for piece in pieces], self._glue)
            begins = zip(pieces, places[:, 0].tolist(), strict=True)
            bounds = np.concatenate([piece.bounds + begin for piece, begin in begins])
        self._clear()
        return DocumentBatch(data, np.ascontiguousarray(bounds), ends, read_bytes, continues)


def _read_source(
    source: Source, span: tuple[int, int] | None, options: _Options
) -> Iterator[tuple[Piece, int]]:
    """UTF-8 pieces of one source, each with how much of its file has been read."""
    reading = options.reading
    is_plain = source.format == "text" and not source.compression and not reading.encoding
    is_local = is_plain and not source.is_remote and not span
    if is_local and 0 < (source.size or 0) <= _SMALL_BYTES:
        return _checked(iter([(_read_small(source, reading.marks), 0)]), source, options)
    return _checked(_read_pieces(source, span, options), source, options)


def _checked(
    pieces: Iterator[tuple[Piece, int]], source: Source, options: _Options
) -> Iterator[tuple[Piece, int]]:
    num_skipped = 0
    for piece, position in pieces:
        piece, skipped = check_utf8(piece, options.reading.errors, source, options.glue)
        num_skipped += skipped
        if len(piece.bounds):
            yield piece, position
    if num_skipped:
        _log.warning("%s: left out %s", source, count_of(num_skipped, "document"))


def _read_pieces(
    source: Source, span: tuple[int, int] | None, options: _Options
) -> Iterator[tuple[Piece, int]]:
    reading = options.reading
    with open_source(source) as (stream, raw):
        begin = 0
        if span is not None:
            marks = reading.marks if source.format == "text" else [b"\n"]
            stream, begin = open_span(raw, span, source.size or 0, marks)
        is_seekable = raw.seekable() and span is None

        def tell() -> int:
            return raw.tell() if is_seekable else 0

        if reading.encoding is not None and source.format != "parquet":
            stream = as_utf8(stream, reading.encoding, reading.errors, str(source))
        if source.format == "text":
            # Of a document to be left out, nothing may have been given before.
            find_cut = options.find_cut if reading.errors != "skip" else None
            for piece in read_text(
                stream, reading.marks, options.batch_bytes, find_cut, options.piece_bytes, begin
            ):
                yield piece, tell()
            return
        if isinstance(stream, io.RawIOBase) and source.format != "parquet":
            stream = io.BufferedReader(stream, 1 << 20)
        name = f"{source} after byte {begin}," if begin else str(source)
        texts = _READERS[source.format](stream, reading, name)
        for waiting in _gather(texts, options.batch_bytes):
            kept = [text for text in waiting if text is not None]
            data, bounds = pack(kept, options.glue)
            if len(kept) < len(waiting):
                count = count_of(len(waiting) - len(kept), "record")
                _log.warning("%s: left out %s without text", source, count)
            yield Piece(data, drop_empty(bounds)), tell()


def _gather(texts: Iterator[bytes | None], num_bytes: int) -> Iterator[Sequence[bytes | None]]:
    waiting: list[bytes | None] = []
    size = 0
    for text in texts:
        waiting.append(text)
        size += len(text or b"")
        if size >= num_bytes:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting


def _read_small(source: Source, marks: Sequence[bytes]) -> Piece:
    """A small file at once: the general way would take longer than its text."""
    try:
        file = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(file, (source.size or 0) + 1)
            check_unchanged(source, file)
        finally:
            os.close(file)
    except OSError as error:
        raise UnreadableError(f"{source} cannot be read: {error.strerror}") from error
    mark = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    data = data[mark:] if mark else data
    if any(separator in data for separator in marks):
        return Piece(data, split_documents(data, marks), mark)
    return Piece(data, np.array([[0, len(data)]] if data else [], np.int64).reshape(-1, 2), mark)


def read_document_batches(
    inputs: Sequence[str | os.PathLike[str]],
    *,
    batch_bytes: int = BATCH_BYTES,
    progress: Progress | None = None,
    **reading: Any,
) -> Iterator[DocumentBatch]:
    """Yield the documents of files, folders, globs or `-`; `reading` are fields of `Reading`."""
    how = Reading(**reading)
    part = Part(tuple(find_sources(inputs, how.errors)))
    is_known = all(source.size is not None for source in part.sources)
    for batch in read(part, how, batch_bytes=batch_bytes):
        if len(batch.bounds):
            yield batch
        if progress is not None:
            progress(batch.read_bytes, part.num_bytes if is_known else None)
