"""JSON lines: one field of each line's object is a document."""

import json
from collections.abc import Callable, Iterator
from typing import IO

import numpy as np

from groundup.errors import DataError
from groundup.text_files.documents import DocumentBatch, Errors, not_utf8
from groundup.text_files.inputs import Source

# A record is held several times over while it is taken apart.
_LONGEST_LINE_BYTES = 256 << 20


class _BadLine(Exception):
    pass


def read_json_lines(
    stream: IO[bytes],
    field: str,
    errors: Errors,
    source: Source,
    batch_bytes: int,
    tell: Callable[[], int],
) -> Iterator[DocumentBatch]:
    """Yield the texts of `field`, each UTF-8 as `errors` says; blank lines count for nothing.

    stream: lines of JSON objects.
    field: the name of the text in each.
    errors: what to do with text that is not UTF-8.
    source: named by errors.
    batch_bytes: about how much text a batch holds.
    tell: how far the file behind the stream has been read.
    """
    texts: list[bytes | None] = []
    size = begin = position = 0
    lines = iter(lambda: stream.readline(_LONGEST_LINE_BYTES + 1), b"")
    for number, line in enumerate(lines, start=1):
        if not line.isspace():
            try:
                if len(line) > _LONGEST_LINE_BYTES:
                    raise _BadLine(f"is longer than {_LONGEST_LINE_BYTES:,} bytes; divide it")
                text = _text_of_line(line, field, errors)
            except _BadLine as error:
                raise DataError(f"{source} line {number} {error}") from None
            except UnicodeError:
                raise not_utf8(f"{source} line {number}") from None
            texts.append(text)
            size += 0 if text is None else len(text)
        position += len(line)
        if size >= batch_bytes:
            yield _pack(texts, begin, tell())
            texts, size, begin = [], 0, position
    if texts:
        yield _pack(texts, begin, tell())


def _pack(texts: list[bytes | None], offset: int, read_bytes: int) -> DocumentBatch:
    kept = [text for text in texts if text is not None]
    lengths = np.fromiter(map(len, kept), np.int64, len(kept))
    ends = np.cumsum(lengths)
    bounds = np.stack([ends - lengths, ends], axis=1)
    return DocumentBatch(b"".join(kept), bounds, offset, read_bytes, len(texts) - len(kept))


def _text_of_line(line: bytes, field: str, errors: Errors) -> bytes | None:
    """The document in a line, None for one to leave out; UnicodeError for one that is not UTF-8."""
    try:
        text = line.decode("utf-8", "strict" if errors != "replace" else "replace")
        value = _value_of_field(text.removeprefix("\ufeff"), field)
        return value.encode()
    except UnicodeDecodeError:
        if errors == "strict":
            raise
        return None
    except UnicodeEncodeError:
        # JSON can spell half of a surrogate pair, which UTF-8 cannot.
        if errors == "strict":
            raise
        if errors == "skip":
            return None
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def _value_of_field(line: str, field: str) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _BadLine(f"is not JSON: {error}; each line must be an object") from None
    if not isinstance(record, dict):
        raise _BadLine(f"holds {_describe(record)}; each line must be an object")
    if field not in record:
        fields = ", ".join(record) or "none"
        raise _BadLine(f"has no field {field}; its fields are {fields}: choose one with --field")
    value = record[field]
    if not isinstance(value, str):
        raise _BadLine(f"holds {_describe(value)} in field {field}, not a text")
    return value


def _describe(value: object) -> str:
    if value is None:
        return "null"
    names = {bool: "a truth value", int: "a number", float: "a number", str: "a text"}
    return names.get(type(value), "a list" if isinstance(value, list) else "an object")
