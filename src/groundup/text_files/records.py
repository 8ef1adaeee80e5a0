"""Records with a text in each: lines of JSON objects, and tables of separated values."""

import csv
import io
import json
from collections.abc import Iterator
from typing import IO, Any

from groundup.errors import DataError
from groundup.text_files.documents import Reading, Source, encode
from groundup.text_files.opening import open_source

LONGEST_RECORD_BYTES = 256 << 20
"""A record is held several times over while it is taken apart."""
_DELIMITERS = ",\t;|"
# What is no UTF-8 is left out, if anything may be.
_NO_TEXT = b"\xff"


def read_json_lines(stream: IO[bytes], reading: Reading, name: str) -> Iterator[bytes]:
    """Yield the text of each line's object."""
    for where, line in _lines(stream, name):
        try:
            yield _text_of(_parse(line, where), reading, where)
        except DataError:
            if reading.errors != "skip":
                raise
            yield _NO_TEXT


def read_objects(source: Source) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of JSON lines, UTF-8 all over, with their places in the source."""
    with open_source(source) as (stream, _):
        for where, line in _lines(stream, str(source)):
            record = _parse(line, where)
            try:
                json.dumps(record, ensure_ascii=False).encode()
            except UnicodeEncodeError:
                raise DataError(f"{where} has text that is not UTF-8; fix the line") from None
            yield where, record


def read_delimited(stream: IO[bytes], reading: Reading, name: str) -> Iterator[bytes]:
    """Yield the texts of a column; the first line names the columns and tells what parts them."""
    lines = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
    try:
        header = lines.readline()
        if not header:
            return
        delimiter, column = _find_column(header, reading, name)
        rows = csv.reader(lines, delimiter=delimiter, strict=True)
        while True:
            where = f"{name} line {rows.line_num + 2}"
            row = _next_row(rows, where)
            if row is None:
                return
            if len(row) > column:
                yield encode(row[column], reading.errors, where)
            elif row and reading.errors == "skip":
                yield _NO_TEXT
            elif row:
                raise DataError(
                    f"{where} has {len(row)} columns and none for {reading.field}; fix the line, "
                    f"or use --errors skip"
                )
    finally:
        lines.detach()


def _lines(stream: IO[bytes], name: str) -> Iterator[tuple[str, bytes]]:
    lines = iter(lambda: stream.readline(LONGEST_RECORD_BYTES + 1), b"")
    for number, line in enumerate(lines, start=1):
        if len(line) > LONGEST_RECORD_BYTES:
            raise DataError(f"{name} line {number} is longer than {LONGEST_RECORD_BYTES:,} bytes")
        if not line.isspace():
            yield f"{name} line {number}", line


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8-sig", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON: {error}; fix the line") from None
    if not isinstance(record, dict):
        raise DataError(f"{where} holds {json.dumps(record):.40}, not an object; fix the line")
    return record


def _text_of(record: dict[str, Any], reading: Reading, where: str) -> bytes:
    field = reading.field
    if field not in record:
        fields = ", ".join(map(str, record)) or "none"
        raise DataError(f"{where} has no field {field} (fields: {fields:.200}); set --field")
    if not isinstance(record[field], str):
        raise DataError(
            f"{where} holds {json.dumps(record[field]):.40} in field {field}, not a text; fix it, "
            f"or use --errors skip"
        )
    return encode(record[field], reading.errors, where)


def _next_row(rows: Any, where: str) -> list[str] | None:
    # The limit of 128 kB a value is one for the whole process.
    limit = csv.field_size_limit(LONGEST_RECORD_BYTES)
    try:
        row: list[str] | None = next(rows, None)
        return row
    except csv.Error as error:
        raise DataError(f"{where} cannot be read: {error} (is a quote open?); fix it") from error
    finally:
        csv.field_size_limit(limit)


def _find_column(header: str, reading: Reading, name: str) -> tuple[str, int]:
    """The delimiter and the number of the column, from the first line."""
    where, columns = f"{name} line 1", [""]
    for delimiter in _DELIMITERS:
        found = _next_row(csv.reader([header], delimiter=delimiter, strict=True), where) or []
        if reading.field in found:
            return delimiter, found.index(reading.field)
        columns = max(columns, found, key=len)
    encode(header, "strict", where)
    names = ", ".join(columns)
    raise DataError(f"{name} has no column {reading.field} ({names:.200}); set --field")
