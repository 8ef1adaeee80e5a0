"""Conversations out of JSON lines: messages, or a prompt and its completion."""

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from groundup.errors import DataError
from groundup.text_files import find_sources
from groundup.text_files.records import read_objects
from groundup.tokenizer.chat_template import Message, check_messages

_FORMS = '{"messages": [{"role": …, "content": …}, …]} or {"prompt": …, "completion": …}'


class Conversation(NamedTuple):
    """The turns of one line, in which every user's turn has its answer."""

    messages: list[Message]
    where: str
    """For errors: file and line."""


def read_conversations(inputs: Sequence[str | os.PathLike[str]]) -> Iterator[Conversation]:
    """Yield the conversations of files, folders or globs, in order.

    inputs: JSON lines, also compressed. Each line has `messages`, or `prompt` and `completion`,
        which are texts or lists of messages.
    """
    for source in find_sources(inputs):
        if source.format not in ("text", "json_lines"):
            raise DataError(f"{source} is not JSON lines; write each conversation as {_FORMS}")
        for where, record in read_objects(source):
            messages = _messages_of(record, where)
            _check_turns(messages, where)
            yield Conversation(messages, where)


def _messages_of(record: dict[str, Any], where: str) -> list[Message]:
    if "messages" in record:
        return check_messages(record["messages"], where)
    if "prompt" not in record or "completion" not in record:
        fields = ", ".join(map(str, record)) or "none"
        raise DataError(f"{where} has the fields {fields:.80}; each line must be {_FORMS}")
    messages: list[Any] = []
    for field, role in (("prompt", "user"), ("completion", "assistant")):
        value = record[field]
        messages += value if isinstance(value, list) else [{"role": role, "content": value}]
    return check_messages(messages, where)


def _check_turns(messages: list[Message], where: str) -> None:
    """Every user's turn is answered, and no answer is empty."""
    following = [message["role"] for message in messages[1:]] + ["nothing"]
    for number, (message, after) in enumerate(zip(messages, following, strict=True), start=1):
        place = f"message {number} of {where}"
        if message["role"] == "user" and after != "assistant":
            raise DataError(f"{place} is a user's turn without an answer: {after} follows it")
        if message["role"] == "assistant" and not message["content"].strip():
            raise DataError(f"{place} is an empty answer; write one, or remove the turn")
    if all(message["role"] != "assistant" for message in messages):
        raise DataError(f"{where} has no answer; add a message of the assistant")
