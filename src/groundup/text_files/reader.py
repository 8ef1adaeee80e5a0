"""All sources, one after another, as batches of documents or as blocks of text."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from groundup.runtime import num_cores
from groundup.text_files.inputs import OnError, SkippedFiles, Source, classify, expand_inputs
from groundup.text_files.json_lines import read_json_lines
from groundup.text_files.opening import (
    UnreadableError,
    check_length,
    explained_errors,
    open_source,
    size_of,
)
from groundup.text_files.parquet import read_parquet
from groundup.text_files.pieces import (
    DocumentBatch,
    Errors,
    Piece,
    check_utf8,
    check_wishes,
    drop_empty,
    join_documents,
)
from groundup.text_files.plain_text import FindCut, cut_file, cut_stream
from groundup.text_files.small_files import bounds_of, read_small_files

END_OF_TEXT = "<|endoftext|>"

_BATCH_BYTES = 16 << 20
# Enough for each core to be busy for a while, in memory that is small beside the counts.
_BLOCK_BYTES_PER_CORE = 2 << 20

_log = logging.getLogger(__name__)

Progress = Callable[[int, int | None], None]


def read_document_batches(
    inputs: Sequence[str | os.PathLike[str]],
    *,
    separators: Sequence[str] = (END_OF_TEXT,),
    field: str = "text",
    column: str = "text",
    errors: Errors = "strict",
    batch_bytes: int = _BATCH_BYTES,
    progress: Progress | None = None,
) -> Iterator[DocumentBatch]:
    """Yield the documents of files, folders, globs or `-`, in order, in memory that stays flat.

    In plain text a document is what stands between separators or file ends, byte for byte: nothing
    is trimmed, so the line end after a separator begins the next document. In JSON lines and
    Parquet each record is one. Empty documents are left out. A document is never split: one longer
    than `batch_bytes` makes a longer batch.
    """
    reading = _Reading(separators, field, column, errors, batch_bytes)
    for source, piece in reading.pieces(expand_inputs(inputs), progress):
        if len(piece.bounds) or piece.num_skipped:
            yield DocumentBatch(piece.data, piece.bounds, source, piece.offset, piece.num_skipped)


def read_text_blocks(
    inputs: Sequence[str | os.PathLike[str]],
    *,
    separators: Sequence[str] = (END_OF_TEXT,),
    joiner: str | None = None,
    field: str = "text",
    column: str = "text",
    errors: Errors = "strict",
    on_error: OnError = "stop",
    block_bytes: int | None = None,
    progress: Progress | None = None,
    find_cut: FindCut | None = None,
) -> Iterator[bytes | memoryview]:
    """Yield the text itself in large blocks that end where documents end, separators included.

    Records have no separators: each is a block of its own, unless `joiner` names a special token to
    put between them, which makes large blocks of them. With `on_error` "skip", files that cannot be
    read, or no further, are left there and named in a warning. With `find_cut`, a document longer
    than a block may be cut where that finds a place.
    """
    piece_bytes = block_bytes or num_cores() * _BLOCK_BYTES_PER_CORE
    # Of a document to be left out, nothing may have been given before.
    cuts = find_cut if errors != "skip" else None
    reading = _Reading(separators, field, column, errors, piece_bytes, on_error, cuts)
    for source, piece in reading.pieces(expand_inputs(inputs, on_error), progress):
        if classify(source)[0] == "text":
            yield piece.data
        elif joiner is not None:
            yield join_documents(piece, joiner.encode())
        else:
            view = memoryview(piece.data)
            yield from (view[begin:end] for begin, end in piece.bounds.tolist())


class _Reading:
    """How sources are read: the settings that all of them share."""

    def __init__(
        self,
        separators: Sequence[str],
        field: str,
        column: str,
        errors: Errors,
        piece_bytes: int,
        on_error: OnError = "stop",
        find_cut: FindCut | None = None,
    ) -> None:
        check_wishes(errors, on_error)
        self._separators = [separator.encode() for separator in separators]
        self._field = field
        self._column = column
        self._errors: Errors = errors
        self._piece_bytes = piece_bytes
        self._on_error: OnError = on_error
        self._find_cut = find_cut

    def pieces(
        self, sources: Sequence[Source], progress: Progress | None
    ) -> Iterator[tuple[Source, Piece]]:
        sizes = [self._size_of(source) for source in sources]
        known = [size for size in sizes if size is not None]
        total = sum(known) if len(known) == len(sizes) else None
        done = place = 0
        unreadable = SkippedFiles("cannot be read")
        while place < len(sources):
            small = read_small_files(sources, place, self._piece_bytes)
            for source, (text, _) in zip(sources[place:], small, strict=False):
                yield source, Piece(text, bounds_of(text, self._separators), 0, len(text))
                done += len(text)
                if progress is not None:
                    progress(done, total)
            place += len(small)
            if place < len(sources):
                source = sources[place]
                try:
                    for piece in self._checked_pieces(source):
                        yield source, piece
                        if progress is not None:
                            progress(done + piece.read_bytes, total)
                except UnreadableError as error:
                    if self._on_error == "stop":
                        raise
                    unreadable.add(str(error))
                done += sizes[place] or 0
                place += 1
        unreadable.warn()

    def _size_of(self, source: Source) -> int | None:
        try:
            with explained_errors(source):
                return size_of(source)
        except UnreadableError:
            if self._on_error == "stop":
                raise
            return 0

    def _checked_pieces(self, source: Source) -> Iterator[Piece]:
        pieces = self._read(source)
        num_pieces = num_skipped = 0
        while True:
            # Only the reading stands inside: an error of the caller's is none of the file's.
            with explained_errors(source):
                piece = next(pieces, None)
            if piece is None:
                break
            num_pieces += 1
            num_skipped += piece.num_skipped
            yield drop_empty(piece)
        if not num_pieces:
            raise UnreadableError(f"{source} is empty; take it off the inputs or fill it")
        if num_skipped:
            _log.warning("%s: left out %d documents that are not UTF-8", source, num_skipped)

    def _read(self, source: Source) -> Iterator[Piece]:
        kind, compression = classify(source)
        if kind == "parquet":
            assert isinstance(source, Path)
            for piece in read_parquet(source, compression, self._column, self._piece_bytes):
                yield check_utf8(piece, self._errors, source, "row")
            return
        num_bytes = size_of(source)
        with open_source(source, compression) as (stream, raw):
            if num_bytes is not None and kind == "text" and compression is None:
                pieces = cut_file(
                    raw.fileno(),
                    num_bytes,
                    self._separators,
                    self._piece_bytes,
                    source,
                    self._find_cut,
                )
                yield from (check_utf8(piece, self._errors, source, "byte") for piece in pieces)
                return
            yield from self._read_stream(source, kind == "json_lines", stream, _teller(raw))
            if num_bytes is not None:
                check_length(raw.fileno(), num_bytes)

    def _read_stream(
        self, source: Source, is_json_lines: bool, stream: IO[bytes], tell: Callable[[], int]
    ) -> Iterator[Piece]:
        if is_json_lines:
            yield from read_json_lines(
                stream, self._field, self._errors, source, self._piece_bytes, tell
            )
            return
        pieces = cut_stream(stream, self._separators, self._piece_bytes, tell, self._find_cut)
        for piece in pieces:
            yield check_utf8(piece, self._errors, source, "byte")


def _teller(raw: IO[bytes]) -> Callable[[], int]:
    """How far a file has been read; a pipe cannot tell."""
    return raw.tell if raw.seekable() else lambda: 0
