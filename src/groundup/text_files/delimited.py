"""Tables of comma- or tab-separated values: one column of each row is a document."""

import csv
import io
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO

from groundup.errors import DataError
from groundup.text_files.documents import DocumentBatch, Errors, not_utf8
from groundup.text_files.inputs import Source
from groundup.text_files.records import LONGEST_RECORD_BYTES, encode_text, pack_texts

_DELIMITERS = ",\t;|"
# A quote that opens in the header and never closes would make a name of the whole file.
_HEADER_LINES = 100


def read_delimited(
    stream: IO[bytes],
    field: str,
    errors: Errors,
    source: Source,
    batch_bytes: int,
    tell: Callable[[], int],
) -> Iterator[DocumentBatch]:
    """Yield the texts of a column; the first row names the columns and tells what parts them.

    stream: rows of values, those with line breaks or the delimiter in quotes.
    field: the name of the column.
    errors: what to do with text that is not UTF-8, and with rows that end before the column.
    source: named by errors.
    batch_bytes: about how much text a batch holds.
    tell: how far the file behind the stream has been read.
    """
    # The module's own limit is 128 kB a value, for all who use it.
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_RECORD_BYTES))
    lines = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
    try:
        yield from _read(lines, field, errors, source, batch_bytes, tell)
    finally:
        lines.detach()


def _read(
    lines: io.TextIOWrapper,
    field: str,
    errors: Errors,
    source: Source,
    batch_bytes: int,
    tell: Callable[[], int],
) -> Iterator[DocumentBatch]:
    header = list(itertools.islice(lines, 1))
    if not header:
        return
    delimiter, column, num_lines = _find_column(header, lines, field, source)
    current = _Row()
    rest = itertools.chain(header[num_lines:], lines)
    rows = csv.reader(_lines_of_rows(rest, current), delimiter=delimiter)
    texts: list[bytes | None] = []
    size = begin = number = 0
    while True:
        where = f"{source} line {rows.line_num + num_lines + 1}"
        try:
            current.has_begun = False
            row = next(rows, None)
            if row is None:
                break
            if row:
                number += 1
                is_skipped = errors == "skip" and len(row) <= column
                texts.append(None if is_skipped else encode_text(row[column], errors))
                size += len(texts[-1] or b"")
        except csv.Error as error:
            raise DataError(f"{where} cannot be read: {error}; fix the line") from error
        except IndexError:
            raise DataError(
                f"{where} has {len(row or ())} columns and none for {field}; fix the line, or "
                f"leave such lines out with --errors skip"
            ) from None
        except UnicodeEncodeError:
            raise not_utf8(where, (row or [""])[column].encode(errors="surrogateescape")) from None
        if size >= batch_bytes:
            yield pack_texts(texts, begin, tell())
            texts, size, begin = [], 0, number
    # A file that has a header and nothing else is not empty.
    yield pack_texts(texts, begin, tell())


@dataclass
class _Row:
    has_begun: bool = False


def _lines_of_rows(lines: Iterable[str], row: _Row) -> Iterator[str]:
    """The lines, for a reader of rows. Where it wants another within a row and there is none, a
    quote was never closed, and all rows behind it would be that row's text."""
    for line in lines:
        row.has_begun = True
        yield line
    if row.has_begun:
        raise csv.Error("a quote opens there and never closes")


def _find_column(
    header: list[str], lines: Iterator[str], field: str, source: Source
) -> tuple[str, int, int]:
    """The delimiter, the number of the column, and how many lines the names take.

    header: the first line; those that are read to see where a quote closes are added.
    lines: the others.
    """

    def read() -> Iterator[str]:
        yield from header
        for line in itertools.islice(lines, _HEADER_LINES - len(header)):
            header.append(line)
            yield line

    splits: list[list[str]] = []
    problem = None
    for delimiter in _DELIMITERS:
        rows = csv.reader(_lines_of_rows(read(), _Row()), delimiter=delimiter)
        try:
            splits.append(next(rows))
        except csv.Error as error:
            problem = error
            continue
        if field in splits[-1]:
            return delimiter, splits[-1].index(field), rows.line_num
    if problem is not None:
        raise DataError(f"{source} line 1 cannot be read: {problem}; fix the line") from problem
    beginning = header[0].encode("utf-8", "surrogateescape")
    try:
        columns = ", ".join(sorted(splits, key=len)[-1])
        columns.encode()
    except UnicodeEncodeError:
        raise not_utf8(f"{source} line 1", beginning) from None
    raise DataError(
        f"{source} has no column {field}; its columns are {columns}: choose one with --field"
    )
