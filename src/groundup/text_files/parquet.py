"""Parquet: each row of one column is a document. The columns' buffers are used as they are."""

import shutil
import tempfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from groundup.errors import DataError, MissingExtraError
from groundup.text_files.documents import DocumentBatch
from groundup.text_files.inputs import Compression, Source
from groundup.text_files.opening import UnreadableError, open_source, size_of
from groundup.text_files.remote import RemoteFile

_TEXT_TYPES = "string large_string string_view binary large_binary binary_view".split()


def read_parquet(
    source: Source, compression: Compression | None, column: str, batch_bytes: int
) -> Iterator[DocumentBatch]:
    """Yield the texts of `column`; offsets are row numbers, a missing value is an empty text.

    source: the file.
    compression: how it is packed as a whole, if it is.
    column: the name of the texts.
    batch_bytes: about how much text a batch holds.
    """
    if isinstance(source, RemoteFile) and compression is None:
        with open_source(source, None) as (file, _):
            yield from _read(file, column, source, batch_bytes)
        return
    if compression is None:
        yield from _read(str(source), column, source, batch_bytes)
        return
    # Parquet is read from its end, which a packed file cannot be.
    with tempfile.TemporaryFile() as unpacked:
        with open_source(source, compression) as (stream, _):
            shutil.copyfileobj(stream, unpacked, 1 << 20)
        unpacked.seek(0)
        yield from _read(unpacked, column, source, batch_bytes)


def _read(
    file: str | IO[bytes], column: str, source: Source, batch_bytes: int
) -> Iterator[DocumentBatch]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("reading .parquet files", "parquet") from error
    file_bytes = size_of(source) or 0
    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            _check_column(table.schema_arrow, column, source, pyarrow.types)
            num_rows = table.metadata.num_rows
            done = 0
            for rows in table.iter_batches(_rows_in(table, column, batch_bytes), columns=[column]):
                texts = rows.column(0).cast(pyarrow.large_binary()).fill_null(b"")
                read_bytes = file_bytes * (done + len(texts)) // num_rows
                yield _as_batch(texts, done, read_bytes)
                done += len(texts)
    except pyarrow.ArrowException as error:
        raise UnreadableError(f"{source} is not a readable Parquet file: {error}") from error


def _as_batch(texts: Any, row: int, read_bytes: int) -> DocumentBatch:
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    begin, end = int(ends[0]), int(ends[-1])
    text = memoryview(data)[begin:end] if end > begin else b""
    bounds = np.stack([ends[:-1], ends[1:]], axis=1) - begin
    return DocumentBatch(text, bounds, row, read_bytes)


def _rows_in(table: Any, column: str, batch_bytes: int) -> int:
    """How many rows make up about `batch_bytes`."""
    metadata = table.metadata
    num_rows = int(metadata.num_rows)
    number = table.schema_arrow.names.index(column)
    total = sum(
        int(metadata.row_group(group).column(number).total_uncompressed_size)
        for group in range(metadata.num_row_groups)
    )
    return max(1, min(1 << 20, batch_bytes * num_rows // max(1, total)))


def _check_column(schema: Any, column: str, source: Source, types: Any) -> None:
    if column not in schema.names:
        columns = ", ".join(schema.names)
        raise DataError(
            f"{source} has no column {column}; its columns are {columns}: choose one with --column"
        )
    if schema.names.count(column) > 1:
        raise DataError(f"{source} has more than one column {column}; rename all but one")
    kind = schema.field(column).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if str(kind) not in _TEXT_TYPES:
        raise DataError(f"{source}: column {column} holds {kind}, not text")
