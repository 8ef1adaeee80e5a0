"""Records with a text in each: lines of JSON objects, and tables of separated values."""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from typing import IO, Any

from groundup.errors import DataError
from groundup.text_files.documents import Reading, Source, decode, encode
from groundup.text_files.opening import open_source

LONGEST_RECORD_BYTES = 256 << 20
"""A record is held several times over while it is taken apart."""

_DELIMITERS = ",\t;|"


def read_json_lines(stream: IO[bytes], reading: Reading, name: str) -> Iterator[bytes | None]:
    """Yield the text of each line's object; None where there is none and it may be skipped."""
    for where, line in _lines(stream, name):
        try:
            text = decode(line, reading.errors, where)
            yield None if text is None else _text_of(_parse(text, where), reading, where)
        except DataError:
            if reading.errors != "skip":
                raise
            yield None


def read_objects(source: Source) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of JSON lines, each with its place in the source for errors."""
    with open_source(source) as (stream, _):
        lines: Any = io.BufferedReader(stream) if isinstance(stream, io.RawIOBase) else stream
        for where, line in _lines(lines, str(source)):
            yield where, _parse(decode(line, "strict", where) or "", where)


def read_delimited(stream: IO[bytes], reading: Reading, name: str) -> Iterator[bytes | None]:
    """Yield the texts of a column; the first row names the columns and tells what parts them."""
    lines = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
    try:
        yield from _read_table(lines, reading, name)
    finally:
        lines.detach()


def _lines(stream: IO[bytes], name: str) -> Iterator[tuple[str, bytes]]:
    lines = iter(lambda: stream.readline(LONGEST_RECORD_BYTES + 1), b"")
    for number, line in enumerate(lines, start=1):
        if len(line) > LONGEST_RECORD_BYTES:
            raise DataError(f"{name} line {number} is longer than {LONGEST_RECORD_BYTES:,} bytes")
        if not line.isspace():
            yield f"{name} line {number}", line


def _parse(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON: {error}; fix the line") from None
    if not isinstance(record, dict):
        raise DataError(f"{where} holds {json.dumps(record):.40}, not an object; fix the line")
    return record


def _text_of(record: dict[str, Any], reading: Reading, where: str) -> bytes | None:
    field = reading.field
    if field not in record:
        fields = ", ".join(map(str, record)) or "none"
        raise DataError(f"{where} has no field {field} (fields: {fields:.200}); set --field")
    if not isinstance(record[field], str):
        found = json.dumps(record[field])
        raise DataError(
            f"{where} holds {found:.40} in field {field}, not a text; fix it, or use --errors skip"
        )
    return encode(record[field], reading.errors, where)


def _read_table(lines: io.TextIOWrapper, reading: Reading, name: str) -> Iterator[bytes | None]:
    header = lines.readline()
    if not header:
        return
    delimiter, column = _find_column(header, reading.field, name)
    progress = _Progress()
    rows = csv.reader(progress.watch(lines), delimiter=delimiter)
    while True:
        where = f"{name} line {rows.line_num + 2}"
        progress.is_inside = False
        row = _next_row(rows, where)
        if row is None:
            return
        if len(row) > column:
            data = row[column].encode(errors="surrogateescape")
            text = decode(data, reading.errors, where)
            yield None if text is None else text.encode()
        elif row and reading.errors == "skip":
            yield None
        elif row:
            raise DataError(
                f"{where} has {len(row)} columns and none for {reading.field}; fix the line, or "
                f"use --errors skip"
            )


class _Progress:
    """Whether the reader of rows has taken a line of the row that it is at.

    Where it wants another line and there is none, a quote was never closed, and all rows behind it
    would be that row's text.
    """

    is_inside = False

    def watch(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            self.is_inside = True
            yield line
        if self.is_inside:
            raise csv.Error("a quote opens there and never closes")


def _next_row(rows: Any, where: str) -> list[str] | None:
    # The limit of 128 kB a value is one for the whole process.
    limit = csv.field_size_limit(LONGEST_RECORD_BYTES)
    try:
        row: list[str] | None = next(rows, None)
        return row
    except csv.Error as error:
        raise DataError(f"{where} cannot be read: {error}; fix the line") from error
    finally:
        csv.field_size_limit(limit)


def _find_column(header: str, field: str, name: str) -> tuple[str, int]:
    """The delimiter and the number of the column, from the first line."""
    if header.count('"') % 2:
        raise DataError(f"{name} line 1 cannot be read: a quote opens there and never closes")
    splits = [_next_row(csv.reader([header], delimiter=one), name) or [] for one in _DELIMITERS]
    for delimiter, columns in zip(_DELIMITERS, splits, strict=True):
        if field in columns:
            return delimiter, columns.index(field)
    decode(header.encode(errors="surrogateescape"), "strict", f"{name} line 1")
    columns = max(splits, key=len)
    raise DataError(f"{name} has no column {field} ({', '.join(columns):.200}); set --field")
