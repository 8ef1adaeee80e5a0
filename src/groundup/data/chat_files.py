"""Conversations from files: JSON lines, JSON lists, and tables of questions and answers."""

import json
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from groundup.errors import DataError
from groundup.text_files import Source, find_sources
from groundup.text_files.conversations import SHAPES, find_turns
from groundup.text_files.records import Record, read_records
from groundup.tokenizer.chat_template import Message, check_messages

_FORMATS = ("text", "json", "json_lines", "delimited")
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


def _records(source: Source) -> Iterator[Record]:
    """Yield what a file holds; of JSON such as {"version": …, "data": […]} what the list holds."""
    if source.format not in _FORMATS:
        raise DataError(f"{source} is neither JSON nor CSV; write its conversations as either")
    for where, record in read_records(source, source.format.replace("text", "json")):
        values = record.values() if where == str(source) and isinstance(record, dict) else ()
        items = next((one for one in values if isinstance(one, list)), None)
        if items is None or find_turns(record) is not None:
            yield where, record
        else:
            yield from ((f"{source} record {number}", one) for number, one in enumerate(items, 1))
