"""Conversations from files: JSON lines, JSON lists, and tables of questions and answers."""

import csv
import io
import json
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from groundup.errors import DataError
from groundup.runtime import count_of
from groundup.text_files import Source, find_sources
from groundup.text_files.conversations import SHAPES, find_turns
from groundup.text_files.encodings import marked_encoding
from groundup.text_files.opening import open_source
from groundup.tokenizer.chat_template import Message, check_messages

_FORMATS = ("text", "json", "json_lines", "delimited")
_DELIMITERS = ",\t;|"
_COMPLAINTS_SHOWN = 3

_log = logging.getLogger(__name__)


class Conversation(NamedTuple):
    """The turns of one record, in which every user's turn has its answer."""

    messages: list[Message]
    where: str
    """For errors: the file, and the line or the number of the record."""


def read_conversations(
    inputs: Sequence[str | os.PathLike[str]], *, strict: bool = False, is_quiet: bool = False
) -> Iterator[Conversation]:
    """Yield the conversations of files, folders or globs, in order.

    A record that is no conversation is left out and named in a warning; with `strict`, or where no
    other is left, it is a DataError. `is_quiet` leaves the warning out.
    """
    complaints: list[DataError] = []
    num_read = 0
    for source in find_sources(inputs):
        if source.format not in _FORMATS:
            raise DataError(f"{source} is neither JSON nor CSV; write its conversations as either")
        for where, record in _records(source):
            try:
                messages = _messages_of(record, where)
            except DataError as error:
                if strict:
                    raise
                complaints.append(error)
                continue
            num_read += 1
            yield Conversation(messages, where)
    if complaints and not num_read:
        raise complaints[0]
    if complaints and not is_quiet:
        shown = "; ".join(map(str, complaints[:_COMPLAINTS_SHOWN]))
        more = len(complaints) - _COMPLAINTS_SHOWN
        shown += f"; and {more:,} more" if more > 0 else ""
        _log.warning(
            "skipped %d of %d records: %s", len(complaints), num_read + len(complaints), shown
        )


def _messages_of(record: Any, where: str) -> list[Message]:
    if isinstance(record, DataError):
        raise record
    try:
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise DataError(f"{where} has text that is not UTF-8; fix the line") from None
    turns = find_turns(record)
    if turns is None and isinstance(record, dict):
        fields = ", ".join(map(str, record)) or "none"
        raise DataError(f"{where} has the fields {fields:.80}; known forms are {SHAPES}")
    if turns is None:
        raise DataError(f"{where} holds {json.dumps(record):.40}; it must be an object: {SHAPES}")
    messages = check_messages(turns, where)
    following = [message["role"] for message in messages[1:]] + ["nothing"]
    for number, (message, after) in enumerate(zip(messages, following, strict=True), start=1):
        place = f"message {number} of {where}"
        if message["role"] == "user" and after != "assistant":
            raise DataError(f"{place} is a user's turn without an answer: {after} follows it")
        if message["role"] == "assistant" and not message["content"].strip():
            raise DataError(f"{place} is an empty answer; write one, or remove the turn")
    if all(message["role"] != "assistant" for message in messages):
        raise DataError(f"{where} has no answer; add a message of the assistant")
    return messages


def _records(source: Source) -> Iterator[tuple[str, Any]]:
    """Yield what a file holds, each record with its place; one that cannot be read is a DataError
    instead."""
    with open_source(source) as (stream, _):
        if source.format == "json_lines":
            yield from _lines(stream, source)
            return
        data = stream.read()
    marked = marked_encoding(data)
    text = data.decode(marked or "utf-8-sig", "replace" if marked else "surrogateescape")
    if source.format == "delimited":
        yield from _rows(text, source)
        return
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        yield from _lines(io.BytesIO(text.encode(errors="surrogateescape")), source)
        return
    if isinstance(whole, dict) and find_turns(whole) is None:
        # {"version": …, "data": […]}
        whole = next((value for value in whole.values() if isinstance(value, list)), whole)
    first = whole[0] if isinstance(whole, list) and whole else None
    is_turn = isinstance(first, dict) and {"role", "content"} <= first.keys()
    records = [whole] if is_turn or not isinstance(whole, list) else whole
    for number, record in enumerate(records, start=1):
        yield f"{source} record {number}", record


def _lines(stream: Any, source: Source) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(stream, start=1):
        where = f"{source} line {number}"
        if line.isspace():
            continue
        try:
            yield where, json.loads(line.decode("utf-8-sig", "surrogateescape"))
        except (ValueError, RecursionError) as error:
            yield where, DataError(f"{where} is not JSON: {error}; fix the line")


def _rows(text: str, source: Source) -> Iterator[tuple[str, Any]]:
    """The first line names the columns, and tells what parts them."""
    header = text.partition("\n")[0]
    headers = [(next(csv.reader([header], delimiter=one), []), one) for one in _DELIMITERS]
    known = [pair for pair in headers if find_turns(dict.fromkeys(pair[0])) is not None]
    columns, delimiter = known[0] if known else max(headers, key=lambda pair: len(pair[0]))
    if not known:
        raise DataError(
            f"{source} has the columns {', '.join(columns):.80}; known forms are {SHAPES}"
        )
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    next(rows)
    while True:
        where = f"{source} line {rows.line_num + 1}"
        try:
            row = next(rows, None)
        except csv.Error as error:
            yield where, DataError(f"{where} cannot be read: {error} (is a quote open?); fix it")
            continue
        if row is None:
            return
        if len(row) == len(columns):
            yield where, dict(zip(columns, row, strict=True))
        elif row:
            counts = f"{count_of(len(row), 'column')} instead of {len(columns)}"
            yield where, DataError(f"{where} has {counts}; fix the line, or quote its commas")
