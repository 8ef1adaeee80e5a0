"""Conversations out of JSON lines: messages, or a prompt and its completion."""

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from groundup.errors import DataError
from groundup.text_files.inputs import classify, expand_inputs
from groundup.text_files.opening import explained_errors, open_source
from groundup.tokenizer.chat_template import Message, check_messages

_LONGEST_LINE_BYTES = 64 << 20
_FORMS = '{"messages": [{"role": …, "content": …}, …]} or {"prompt": …, "completion": …}'


class Conversation(NamedTuple):
    """The turns of one line, in which every user's turn has its answer."""

    messages: list[Message]
    where: str
    """For errors: file and line."""


def read_conversations(inputs: Sequence[str | os.PathLike[str]]) -> Iterator[Conversation]:
    """Yield the conversations of files, folders or globs, in order; blank lines count for nothing.

    A DataError names the line that is not a conversation, and what is wrong with it.

    inputs: JSON lines, also compressed. Each line has `messages`, or `prompt` and `completion`,
        which are texts or lists of messages.
    """
    for source in expand_inputs(inputs):
        kind, compression = classify(source)
        if kind not in ("text", "json_lines"):
            raise DataError(f"{source} is not JSON lines; write each conversation as {_FORMS}")
        with explained_errors(source), open_source(source, compression) as opened:
            lines = iter(lambda: opened.stream.readline(_LONGEST_LINE_BYTES + 1), b"")
            for number, line in enumerate(lines, start=1):
                if not line.isspace():
                    where = f"{source} line {number}"
                    yield Conversation(_read_line(line, where), where)


def _read_line(line: bytes, where: str) -> list[Message]:
    if len(line) > _LONGEST_LINE_BYTES:
        raise DataError(f"{where} is longer than {_LONGEST_LINE_BYTES:,} bytes; divide it")
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise DataError(f"{where} is not UTF-8; save the file as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON: {error}; each line must be {_FORMS}") from None
    if not isinstance(record, dict):
        shown = json.dumps(record, ensure_ascii=False)
        raise DataError(f"{where} holds {shown:.40}; each line must be {_FORMS}")
    messages = _messages_of(record, where)
    _check_turns(messages, where)
    return messages


def _messages_of(record: dict[str, Any], where: str) -> list[Message]:
    if "messages" in record:
        return check_messages(record["messages"], where)
    if "prompt" not in record or "completion" not in record:
        fields = ", ".join(map(str, record)) or "none"
        raise DataError(f"{where} has the fields {fields:.80}; each line must be {_FORMS}")
    roles = {"prompt": "user", "completion": "assistant"}
    parts = [
        [{"role": role, "content": record[field]}]
        if not isinstance(record[field], list)
        else record[field]
        for field, role in roles.items()
    ]
    return check_messages(parts[0] + parts[1], where)


def _check_turns(messages: list[Message], where: str) -> None:
    """Every user's turn is answered, no answer is empty, and all of it is UTF-8."""
    following = [message["role"] for message in messages[1:]] + ["nothing"]
    for number, (message, after) in enumerate(zip(messages, following, strict=True), start=1):
        place = f"message {number} of {where}"
        if message["role"] == "user" and after != "assistant":
            raise DataError(
                f"{place} is a user's turn without an answer: {after} follows it; add the "
                f"assistant's turn, or remove this one"
            )
        if message["role"] == "assistant" and not message["content"].strip():
            raise DataError(f"{place} is an empty answer; write one, or remove the turn")
        try:
            message["content"].encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{place} holds half of a surrogate pair, which UTF-8 cannot; fix the text"
            ) from None
    if all(message["role"] != "assistant" for message in messages):
        raise DataError(f"{where} has no answer; add a message of the assistant")
