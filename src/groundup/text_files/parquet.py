"""Parquet: each row of one column is a document."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import IO, Any

from groundup.errors import DataError, MissingExtraError
from groundup.text_files.documents import Reading, UnreadableError

_TEXT_TYPES = "string large_string string_view binary large_binary binary_view".split()
_BATCH_BYTES = 8 << 20


def read_parquet(stream: IO[bytes], reading: Reading, name: str) -> Iterator[bytes | None]:
    """Yield the texts of a column; a missing value is an empty text."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("reading .parquet files", "parquet") from error
    column = reading.field
    try:
        with _seekable(stream) as file:
            table = pyarrow.parquet.ParquetFile(file)
            _check_column(table.schema_arrow, column, name, pyarrow.types)
            for rows in table.iter_batches(_rows_in(table.metadata, column), columns=[column]):
                texts = rows.column(0).cast(pyarrow.large_binary()).fill_null(b"")
                yield from texts.to_pylist()
    except pyarrow.ArrowException as error:
        raise UnreadableError(f"{name} is not a readable Parquet file: {error}") from error


@contextlib.contextmanager
def _seekable(stream: IO[bytes]) -> Iterator[IO[bytes]]:
    """The file itself, or a copy of one that is unpacked: Parquet is read from its end."""
    # gzip would seek by unpacking from the beginning again.
    if stream.seekable() and not hasattr(stream, "mtime"):
        yield stream
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(stream, copy, 1 << 20)
        copy.seek(0)
        yield copy


def _rows_in(metadata: Any, column: str) -> int:
    """How many rows make up about a batch. Columns of structs are several here."""
    total = 0
    for group in range(metadata.num_row_groups):
        columns = metadata.row_group(group)
        for number in range(columns.num_columns):
            if columns.column(number).path_in_schema == column:
                total += int(columns.column(number).total_uncompressed_size)
    return max(1, min(1 << 20, _BATCH_BYTES * int(metadata.num_rows) // max(1, total)))


def _check_column(schema: Any, column: str, name: str, types: Any) -> None:
    if schema.names.count(column) != 1:
        columns = ", ".join(schema.names)
        raise DataError(f"{name} has no single column {column} (columns: {columns}); set --field")
    kind = schema.field(column).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if str(kind) not in _TEXT_TYPES:
        raise DataError(f"{name}: column {column} holds {kind}, not text")
