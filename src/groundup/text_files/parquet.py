"""Parquet: each row is a document, the value of a text column or a conversation."""

from collections.abc import Iterator
from typing import IO, Any

from groundup.errors import DataError, MissingExtraError
from groundup.text_files.documents import Reading, UnreadableError
from groundup.text_files.records import (
    TURNS,
    choose_field,
    find_turns,
    longest_field,
    text_of_turns,
)

_TEXT_TYPES = "string large_string string_view binary large_binary binary_view".split()
_BATCH_ROWS, _NUM_SEEN = 256, 64


def read_parquet(
    stream: IO[bytes], reading: Reading, name: str, notes: list[str]
) -> Iterator[bytes]:
    """Yield the text of each row; missing values are empty."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("reading .parquet files", "parquet") from error
    if not stream.seekable() or hasattr(stream, "mtime"):
        # Parquet is read from its end, and gzip decompresses from the start for each seek back.
        raise DataError(f"{name} is a compressed Parquet file; decompress it first")
    try:
        table = pyarrow.parquet.ParquetFile(stream)
        schema = table.schema_arrow
        texts = [one.name for one in schema if _is_text(one.type, pyarrow.types)]
        head = next(table.iter_batches(_NUM_SEEN, columns=texts), None)
        longest = longest_field(head.to_pylist() if head else ())
        lists = [one.name for one in schema if str(one.type).startswith(("list", "large_list"))]
        found = dict.fromkeys(texts, "") | {one: [{"role": "", "content": ""}] for one in lists}
        column = choose_field(found, reading.field, longest)
        if reading.field in schema.names:
            column = reading.field if reading.field not in lists else TURNS
        if column is None or (column != TURNS and schema.names.count(column) != 1):
            raise DataError(
                f"{name} has no single column {column or reading.field} (columns: "
                f"{', '.join(schema.names)}); set --field"
            )
        if column == TURNS:
            for rows in table.iter_batches(_BATCH_ROWS, columns=[*texts, *lists]):
                for row in rows.to_pylist():
                    turns = find_turns(row.get(reading.field)) or find_turns(row)
                    yield text_of_turns(turns or []).encode("utf-8", "surrogateescape")
            return
        if column not in texts:
            raise DataError(f"{name}: column {column} holds {schema.field(column).type}, not text")
        for rows in table.iter_batches(_BATCH_ROWS, columns=[column]):
            yield from rows.column(0).cast(pyarrow.large_binary()).fill_null(b"").to_pylist()
    except pyarrow.ArrowException as error:
        raise UnreadableError(f"{name} is not a readable Parquet file: {error}") from error


def _is_text(kind: Any, types: Any) -> bool:
    return str(kind.value_type if types.is_dictionary(kind) else kind) in _TEXT_TYPES
