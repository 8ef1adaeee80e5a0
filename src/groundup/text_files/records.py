"""Records with a text in each: lines of JSON objects, and tables of separated values.

The text is in the field asked for, else in a usual one, else it is a conversation; else it is in
the field that holds the longest texts in the first records of a file.
"""

import contextlib
import csv
import io
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

from groundup.errors import DataError
from groundup.text_files.conversations import find_turns, text_of_turns
from groundup.text_files.documents import NO_TEXT, Reading, Source, encode
from groundup.text_files.opening import open_source

LONGEST_RECORD_BYTES = 256 << 20
"""A record is held several times over while it is taken apart."""
_DELIMITERS = ",\t;|"
_USUAL_FIELDS = ("text", "content", "body")
TURNS = "\0turns"
"""Stands for the fields of a conversation."""
# So many records are looked at to find the longest texts.
_NUM_SEEN, _SEEN_BYTES = 64, 1 << 20


def read_json_lines(
    stream: IO[bytes], reading: Reading, name: str, notes: list[str]
) -> Iterator[bytes]:
    """Yield the text of each line's object."""
    lines = _lines(stream, name)
    head = _first_few(lines)
    longest = _longest_field(head)
    for where, line in itertools.chain(head, lines):
        try:
            yield _text_of(_parse(line, where), reading, longest, where)
        except DataError as error:
            yield _no_text(error, reading, name, notes)


def _no_text(error: DataError, reading: Reading, name: str, notes: list[str]) -> bytes:
    """Stands for a record without a text, if it may be left out; the first one is noted."""
    if reading.errors != "skip":
        raise error
    if not any("line " in note for note in notes):
        notes.append(str(error).removeprefix(name).strip())
    return NO_TEXT


def has_usual_field(source: Source, reading: Reading) -> bool:
    """Whether the first line's text is where it can be found without the lines that follow."""
    with open_source(source) as (stream, _):
        for where, line in _lines(stream, str(source)):
            with contextlib.suppress(DataError):
                return choose_field(_parse(line, where), reading.field, None) is not None
    return True


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


def read_delimited(
    stream: IO[bytes], reading: Reading, name: str, notes: list[str]
) -> Iterator[bytes]:
    """Yield the texts of a column; the first line names the columns and tells what parts them."""
    lines = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
    try:
        header = lines.readline()
        if not header:
            return
        delimiter, columns = _find_columns(header, reading, name)
        rows = _rows(csv.reader(lines, delimiter=delimiter, strict=True), name)
        head = _first_few(rows)
        records = (dict(zip(columns, row, strict=False)) for _, row in head)
        field = choose_field(dict.fromkeys(columns, ""), reading.field, longest_field(records))
        if field is None:
            names = ", ".join(columns)
            raise DataError(f"{name} has no column of text ({names:.200}); set --field")
        column = len(columns) - 1 if field == TURNS else columns.index(field)
        for where, row in itertools.chain(head, rows):
            if len(row) > column:
                record = dict(zip(columns, row, strict=False)) if field == TURNS else {}
                text = text_of_turns(find_turns(record) or []) if record else row[column]
                yield encode(text, reading.errors, where)
            elif row:
                reason = f"has {len(row)} columns and none for {columns[column]}; fix the line"
                error = DataError(f"{where} {reason}, or use --errors skip")
                yield _no_text(error, reading, name, notes)
    finally:
        lines.detach()


def choose_field(record: Mapping[str, Any], wanted: str, longest: str | None) -> str | None:
    """The field of a record that holds its text, or TURNS; None for none."""
    if wanted in record:
        return wanted
    names = {name.strip().lower(): name for name in record if isinstance(record[name], str)}
    if usual := next((names[one] for one in _USUAL_FIELDS if one in names), None):
        return usual
    return TURNS if find_turns(record) else longest


def longest_field(records: Iterable[Mapping[str, Any]]) -> str | None:
    """The field with the longest texts; a word of ASCII may be an address or a number."""
    sizes = Counter[str]()
    for record in records:
        for name, value in record.items():
            if isinstance(value, str) and any(map(str.isalpha, value[:1000])):
                is_word = value.isascii() and " " not in value
                sizes[name] += len(value) if is_word else 100 * len(value)
    return max(sizes, key=sizes.__getitem__, default=None)


def _first_few(items: Iterator[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The first lines or rows, with their places."""
    found: list[tuple[str, Any]] = []
    size = 0
    while size < _SEEN_BYTES and len(found) < _NUM_SEEN and (item := next(items, None)):
        found.append(item)
        size += len(item[1]) if isinstance(item[1], bytes) else sum(map(len, item[1]))
    return found


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


def _longest_field(lines: Iterable[tuple[str, bytes]]) -> str | None:
    records: list[Mapping[str, Any]] = []
    for where, line in lines:
        with contextlib.suppress(DataError):
            records.append(_parse(line, where))
    return longest_field(records)


def _text_of(record: dict[str, Any], reading: Reading, longest: str | None, where: str) -> bytes:
    field = choose_field(record, reading.field, longest)
    if field is None or field not in {*record, TURNS}:
        fields = ", ".join(map(str, record)) or "none"
        raise DataError(
            f"{where} has no field {reading.field} (fields: {fields:.200}); set --field"
        )
    value = record.get(field)
    turns = find_turns(record if field == TURNS else value)
    text = text_of_turns(turns) if turns else value
    if not isinstance(text, str):
        raise DataError(
            f"{where} holds {json.dumps(value):.40} in field {field}, not a text; fix it, or use "
            f"--errors skip"
        )
    return encode(text, reading.errors, where)


def _rows(rows: Any, name: str) -> Iterator[tuple[str, list[str]]]:
    while (row := _next_row(rows, where := f"{name} line {rows.line_num + 2}")) is not None:
        yield where, row


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


def _find_columns(header: str, reading: Reading, name: str) -> tuple[str, list[str]]:
    """The delimiter and the columns, from the first line."""
    found: list[tuple[str, list[str]]] = []
    for one in _DELIMITERS:
        reader = csv.reader([header], delimiter=one, strict=True)
        found.append((one, _next_row(reader, f"{name} line 1") or [""]))
    encode(header, "strict", f"{name} line 1")
    return max(found, key=lambda it: (reading.field in it[1], len(it[1])))
