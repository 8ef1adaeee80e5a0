"""Parquet: each row of one column is a document."""

from collections.abc import Iterator
from typing import IO, Any

from groundup.errors import DataError, MissingExtraError
from groundup.text_files.documents import Reading, UnreadableError

_TEXT_TYPES = "string large_string string_view binary large_binary binary_view".split()
_BATCH_BYTES = 8 << 20


def read_parquet(stream: IO[bytes], reading: Reading, name: str) -> Iterator[bytes]:
    """Yield the texts of a column; a missing value is an empty text."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("reading .parquet files", "parquet") from error
    if not stream.seekable() or hasattr(stream, "mtime"):
        # It is read from its end; gzip would unpack all before for every step back.
        raise DataError(f"{name} is Parquet, which is packed already: unpack the file around it")
    try:
        table = pyarrow.parquet.ParquetFile(stream)
        _check_column(table.schema_arrow, reading.field, name, pyarrow.types)
        for rows in table.iter_batches(_rows_in(table.metadata), columns=[reading.field]):
            yield from rows.column(0).cast(pyarrow.large_binary()).fill_null(b"").to_pylist()
    except pyarrow.ArrowException as error:
        raise UnreadableError(f"{name} is not a readable Parquet file: {error}") from error


def _rows_in(metadata: Any) -> int:
    """How many rows make up about a batch, all their columns counted."""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    total = sum(int(group.total_byte_size) for group in groups)
    return max(1, min(1 << 20, _BATCH_BYTES * int(metadata.num_rows) // max(1, total)))


def _check_column(schema: Any, column: str, name: str, types: Any) -> None:
    if schema.names.count(column) != 1:
        columns = ", ".join(schema.names)
        raise DataError(f"{name} has no single column {column} (columns: {columns}); set --field")
    kind = schema.field(column).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if str(kind) not in _TEXT_TYPES:
        raise DataError(f"{name}: column {column} holds {kind}, not text")
