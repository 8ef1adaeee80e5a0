"""JSON lines: one field of each line's object is a document."""

import json
from collections.abc import Callable, Iterator
from typing import IO

from groundup.errors import DataError
from groundup.text_files.documents import DocumentBatch, Errors, not_utf8
from groundup.text_files.inputs import Source
from groundup.text_files.records import LONGEST_RECORD_BYTES, encode_text, pack_texts


class _BadLine(Exception):
    pass


def read_json_lines(
    stream: IO[bytes],
    field: str,
    errors: Errors,
    source: Source | str,
    batch_bytes: int,
    tell: Callable[[], int],
) -> Iterator[DocumentBatch]:
    """Yield the texts of `field`, each UTF-8 as `errors` says; blank lines count for nothing. Lines
    without such a text are an error too, which can only be skipped.

    stream: lines of JSON objects.
    field: the name of the text in each.
    errors: what to do with text that is not UTF-8, and with lines that hold none.
    source: named by errors.
    batch_bytes: about how much text a batch holds.
    tell: how far the file behind the stream has been read.
    """
    texts: list[bytes | None] = []
    size = begin = position = 0
    lines = iter(lambda: stream.readline(LONGEST_RECORD_BYTES + 1), b"")
    for number, line in enumerate(lines, start=1):
        if not line.isspace():
            if len(line) > LONGEST_RECORD_BYTES:
                raise DataError(
                    f"{source} line {number} is longer than {LONGEST_RECORD_BYTES:,} bytes; "
                    f"divide it"
                )
            try:
                text = _text_of_line(line, field, errors)
            except _BadLine as error:
                if errors != "skip":
                    raise DataError(
                        f"{source} line {number} {error}, or leave such lines out with --errors "
                        f"skip"
                    ) from None
                text = None
            except UnicodeEncodeError as error:
                half = ascii(error.object[error.start])[1:-1]
                raise DataError(
                    f"{source} line {number} spells {half}, half of a surrogate pair and no "
                    f"character: fix the line, or use --errors replace or --errors skip"
                ) from None
            except UnicodeDecodeError:
                raise not_utf8(f"{source} line {number}", line) from None
            texts.append(text)
            size += 0 if text is None else len(text)
        position += len(line)
        if size >= batch_bytes:
            yield pack_texts(texts, begin, tell())
            texts, size, begin = [], 0, position
    if texts:
        yield pack_texts(texts, begin, tell())


def _text_of_line(line: bytes, field: str, errors: Errors) -> bytes | None:
    """The document in a line, None for one to leave out; UnicodeError for one that is not UTF-8."""
    is_mended = False
    try:
        text = line.decode()
    except UnicodeDecodeError:
        if errors == "strict":
            raise
        if errors == "skip":
            return None
        text, is_mended = line.decode(errors="replace"), True
    value = _value_of_field(text.removeprefix("\ufeff"), field)
    # JSON can spell half of a surrogate pair, which UTF-8 cannot.
    return encode_text(value, errors, is_mended=is_mended)


def _value_of_field(line: str, field: str) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _BadLine(f"is not JSON: {error}; fix it") from None
    if not isinstance(record, dict):
        raise _BadLine(f"holds {_describe(record)}, not an object; fix it")
    if field not in record:
        fields = ", ".join(record) or "none"
        raise _BadLine(f"has no field {field}; its fields are {fields}: choose one with --field")
    value = record[field]
    if not isinstance(value, str):
        raise _BadLine(f"holds {_describe(value)} in field {field}, not a text; fix it")
    return value


def _describe(value: object) -> str:
    if value is None:
        return "null"
    names = {bool: "a truth value", int: "a number", float: "a number", str: "a text"}
    return names.get(type(value), "a list" if isinstance(value, list) else "an object")
