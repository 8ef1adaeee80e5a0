"""All sources, one after another, as batches of documents or as blocks of text."""

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from groundup.runtime import Progress, count_of, num_cores
from groundup.text_files.delimited import read_delimited
from groundup.text_files.documents import (
    DocumentBatch,
    Errors,
    check_error_handling,
    check_utf8,
    drop_empty,
)
from groundup.text_files.encodings import as_utf8, check_encoding, is_utf8
from groundup.text_files.html import read_html
from groundup.text_files.inputs import (
    Compression,
    OnError,
    SkippedFiles,
    Source,
    classify,
    expand_inputs,
)
from groundup.text_files.json_lines import read_json_lines
from groundup.text_files.opening import (
    EmptyFileError,
    UnreadableError,
    check_length,
    explained_errors,
    find_size,
    open_source,
    size_of,
)
from groundup.text_files.parquet import read_parquet
from groundup.text_files.parts import TextPart
from groundup.text_files.plain_text import FindCut, cut_file, cut_stream
from groundup.text_files.ranges import FindStart, read_range
from groundup.text_files.remote import RemoteFile
from groundup.text_files.small_files import bounds_of, read_small_files

END_OF_TEXT = "<|endoftext|>"

_BATCH_BYTES = 16 << 20
# Enough for each core to be busy for a while, in memory that is small beside the counts.
_BLOCK_BYTES_PER_CORE = 2 << 20

_log = logging.getLogger(__name__)


def read_document_batches(
    inputs: Sequence[str | os.PathLike[str]],
    *,
    separators: Sequence[str] = (END_OF_TEXT,),
    field: str = "text",
    column: str = "text",
    errors: Errors = "strict",
    encoding: str | None = None,
    batch_bytes: int = _BATCH_BYTES,
    progress: Progress | None = None,
    part: TextPart | None = None,
) -> Iterator[DocumentBatch]:
    """Yield the documents of files, folders, globs or `-`, in order, in memory that stays flat.

    In plain text a document is what stands between separators or file ends, byte for byte: nothing
    is trimmed but a byte order mark, so the line end after a separator begins the next document. In
    JSON lines, tables and Parquet each record is one; of HTML each page, its tags off. Empty
    documents are left out. A document is never split: one longer than `batch_bytes` makes a longer
    batch.

    inputs: files, folders, globs, also remote ones, or `-` for standard input.
    separators: texts that end a document of plain text.
    field: where JSON lines and tables hold the text.
    column: where Parquet holds it.
    errors: what becomes of bytes that are not UTF-8: strict, replace or skip.
    encoding: of files that are not UTF-8, and of standard input.
    batch_bytes: about how much text a batch has.
    progress: called with the bytes read so far and of how many.
    part: of which `inputs` are the sources; only what begins in its range is read.
    """
    reading = _Reading(separators, field, column, errors, encoding, batch_bytes, part=part)
    for _, batch in reading.batches(expand_inputs(inputs), progress):
        if len(batch.bounds) or batch.num_skipped:
            yield batch


def read_sources(
    sources: Sequence[Source],
    *,
    field: str = "text",
    column: str = "text",
    errors: Errors = "strict",
    encoding: str | None = None,
    on_error: OnError = "stop",
    progress: Progress | None = None,
    part: TextPart | None = None,
) -> Iterator[tuple[Source, DocumentBatch]]:
    """Yield batches of documents, each with the source it is from.

    sources: as `expand_inputs` gives them.
    field, column, errors, encoding, progress, part: see `read_document_batches`.
    on_error: see `read_text_blocks`.
    """
    separators = (END_OF_TEXT,)
    reading = _Reading(
        separators, field, column, errors, encoding, _BATCH_BYTES, on_error, part=part
    )
    yield from reading.batches(sources, progress)


def read_text_blocks(
    inputs: Sequence[str | os.PathLike[str]],
    *,
    separators: Sequence[str] = (END_OF_TEXT,),
    joiner: str | None = None,
    field: str = "text",
    column: str = "text",
    errors: Errors = "strict",
    encoding: str | None = None,
    on_error: OnError = "stop",
    block_bytes: int | None = None,
    progress: Progress | None = None,
    find_cut: FindCut | None = None,
    part: TextPart | None = None,
    find_start: FindStart | None = None,
) -> Iterator[bytes | memoryview]:
    """Yield the text itself in large blocks that end where documents end, separators included.

    Records have no separators: each is a block of its own, unless there is a `joiner`.

    inputs, separators, field, column, errors, encoding, progress, part: see
        `read_document_batches`.
    joiner: a special token to put behind every record, which makes large blocks of them.
    on_error: with "skip", files that cannot be read, or no further, are left there and named in a
        warning.
    block_bytes: about how much text a block has.
    find_cut: says where a document longer than a block may be cut; else it is not.
    find_start: finds where the part may begin and end if documents of plain text need not be whole.
    """
    block_bytes = block_bytes or num_cores() * _BLOCK_BYTES_PER_CORE
    # Of a document to be left out, nothing may have been given before.
    cuts = find_cut if errors != "skip" else None
    reading = _Reading(
        separators,
        field,
        column,
        errors,
        encoding,
        block_bytes,
        on_error,
        cuts,
        part,
        find_start,
    )
    for source, batch in reading.batches(expand_inputs(inputs, on_error), progress):
        if classify(source)[0] == "text":
            yield batch.data
            continue
        view = memoryview(batch.data)
        documents = [view[begin:end] for begin, end in batch.bounds.tolist()]
        if joiner is None:
            yield from documents
        else:
            # Behind the last as well: the sum of all blocks is the same wherever they end.
            yield joiner.encode().join([*documents, b""])


@dataclass(frozen=True)
class _Reading:
    """How sources are read: the settings that all of them share."""

    separators: Sequence[str]
    field: str
    column: str
    errors: Errors
    encoding: str | None
    batch_bytes: int
    on_error: OnError = "stop"
    find_cut: FindCut | None = None
    part: TextPart | None = None
    find_start: FindStart | None = None

    def __post_init__(self) -> None:
        check_error_handling(self.errors, self.on_error)
        check_encoding(self.encoding)

    def batches(
        self, sources: Sequence[Source], progress: Progress | None
    ) -> Iterator[tuple[Source, DocumentBatch]]:
        sizes = [find_size(source, self.on_error) for source in sources]
        known = [size for size in sizes if size is not None]
        total = sum(known) if len(known) == len(sizes) else None
        done = number = 0
        unreadable, empty = SkippedFiles("cannot be read"), SkippedFiles("empty")
        num_empty = 0
        while number < len(sources):
            small = []
            if not self._is_range:
                small = read_small_files(sources, number, self.batch_bytes, self.encoding)
            for source, (text, _) in zip(sources[number:], small, strict=False):
                bounds = bounds_of(text, self._encoded_separators)
                yield source, DocumentBatch(text, bounds, 0, len(text))
                done += len(text)
                if progress is not None:
                    progress(done, total)
            number += len(small)
            if number < len(sources):
                source = sources[number]
                try:
                    for batch in self._checked_batches(source):
                        yield source, batch
                        if progress is not None:
                            progress(done + batch.read_bytes, total)
                except EmptyFileError:
                    num_empty += 1
                    # Of a part, others know what else there is.
                    is_all = num_empty == len(sources) and self.part is None
                    if self.on_error == "stop" and is_all:
                        raise
                    empty.add(str(source))
                except UnreadableError as error:
                    if self.on_error == "stop":
                        raise
                    unreadable.add(str(error))
                done += sizes[number] or 0
                number += 1
        for files in (unreadable, empty):
            files.warn()

    @property
    def _is_range(self) -> bool:
        return self.part is not None and self.part.span is not None

    @property
    def _encoded_separators(self) -> list[bytes]:
        return [separator.encode() for separator in self.separators]

    def _checked_batches(self, source: Source) -> Iterator[DocumentBatch]:
        batches = self._read(source)
        num_batches = num_skipped = num_replaced = 0
        while True:
            # Only the reading stands inside: an error of the caller's is none of the file's.
            with explained_errors(source):
                batch = next(batches, None)
            if batch is None:
                break
            num_batches += 1
            num_skipped += batch.num_skipped
            num_replaced += batch.num_replaced
            yield drop_empty(batch)
        if not num_batches and not self._is_range:
            raise EmptyFileError(f"{source} is empty; take it off the inputs or fill it")
        if num_skipped:
            documents = "document that is" if num_skipped == 1 else "documents that are"
            what = "not UTF-8" if classify(source)[0] == "text" else "not UTF-8 or no text"
            _log.warning("%s: left out %d %s %s", source, num_skipped, documents, what)
        if num_replaced:
            documents = count_of(num_replaced, "document")
            _log.warning("%s: put U+FFFD for bytes that are not UTF-8 in %s", source, documents)

    def _read(self, source: Source) -> Iterator[DocumentBatch]:
        if self.part is not None and self._is_range:
            for batch in read_range(
                source,
                self.part,
                separators=self._encoded_separators,
                field=self.field,
                errors=self.errors,
                batch_bytes=self.batch_bytes,
                find_cut=self.find_cut,
                find_start=self.find_start,
            ):
                yield check_utf8(batch, self.errors, source, "byte")
            return
        kind, compression = classify(source)
        if kind == "parquet":
            for batch in read_parquet(source, compression, self.column, self.batch_bytes):
                yield check_utf8(batch, self.errors, source, "row")
            return
        # Remote files are read from front to back; only those on disk in any order.
        num_bytes = None if isinstance(source, RemoteFile) else size_of(source)
        is_encoded = not self._is_utf8(source, compression)
        separators, find_cut, size = self._encoded_separators, self.find_cut, self.batch_bytes
        with open_source(source, compression) as (stream, raw):
            # A pipe cannot tell how far it has been read.
            tell = raw.tell if raw.seekable() else lambda: 0
            if is_encoded and self.encoding is not None:
                stream = as_utf8(stream, self.encoding, self.errors, source)
            if kind == "json_lines":
                yield from read_json_lines(stream, self.field, self.errors, source, size, tell)
            elif kind == "delimited":
                yield from read_delimited(stream, self.field, self.errors, source, size, tell)
            elif kind == "html":
                yield from read_html(stream, self.errors, source, tell)
            else:
                if num_bytes is not None and compression is None and not is_encoded:
                    file = raw.fileno()
                    batches = cut_file(file, num_bytes, separators, size, source, find_cut)
                else:
                    batches = cut_stream(stream, separators, size, source, tell, find_cut)
                for batch in batches:
                    yield check_utf8(batch, self.errors, source, "byte")
            if num_bytes is not None:
                check_length(raw.fileno(), num_bytes, source)

    def _is_utf8(self, source: Source, compression: Compression | None) -> bool:
        """Whether a source is read as it is; it is looked through where there is a choice."""
        if self.encoding is None:
            return True
        # A pipe can be read only once.
        if not isinstance(source, RemoteFile) and size_of(source) is None:
            return False
        with open_source(source, compression) as (stream, _):
            return is_utf8(stream, self.encoding)
