"""Conversations for fine-tuning: read from files, encoded with a loss mask, and packed into rows
that `BatchLoader` turns into batches. Does not import torch."""

import itertools
import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from groundup.data.batches.order import Starts, number_samples
from groundup.data.counter_random import check_seed, permute
from groundup.data.shards.check import token_sizes
from groundup.errors import DataError, GroundupError
from groundup.files import hash_bytes
from groundup.text_files import Source, find_sources
from groundup.text_files.records import SHAPES, Record, find_turns, read_records
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.chat_template import ChatTemplate, Message, check_messages

Span = tuple[int, int]

_FORMATS = ("text", "json", "json_lines", "delimited")
_COMPLAINTS_SHOWN = 3
# Conversations encoded per batch: enough to occupy all cores with little memory.
_BATCH_SIZE = 1024

_log = logging.getLogger(__name__)


class Conversation(NamedTuple):
    """The turns of one record; every user turn is followed by an answer."""

    messages: list[Message]
    where: str
    """For error messages: the file, and the line or record number."""


def read_conversations(
    inputs: Sequence[str | os.PathLike[str]], *, strict: bool = False, is_quiet: bool = False
) -> Iterator[Conversation]:
    """Yield the conversations of files, folders or globs, in order.

    Skips records that are not conversations and logs a warning, unless `is_quiet`. Raises DataError
    for the first one if `strict`, or if no record is a conversation.
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
        raise DataError(f"{where} has the fields {fields:.80}; supported are {SHAPES}")
    if turns is None:
        raise DataError(f"{where} holds {json.dumps(record):.40}; it must be an object: {SHAPES}")
    messages = check_messages(turns, where)
    following = [message["role"] for message in messages[1:]] + ["nothing"]
    for number, (message, after) in enumerate(zip(messages, following, strict=True), start=1):
        place = f"message {number} of {where}"
        if message["role"] == "user" and after != "assistant":
            raise DataError(f"{place} is a user turn without an answer: {after} follows it")
        if message["role"] == "assistant" and not message["content"].strip():
            raise DataError(f"{place} is an empty answer; fill it in, or remove the turn")
    if all(message["role"] != "assistant" for message in messages):
        raise DataError(f"{where} has no answer; add an assistant message")
    return messages


def _records(source: Source) -> Iterator[Record]:
    """Yield a file's records; for JSON like {"version": …, "data": […]}, the list's items."""
    if source.format not in _FORMATS:
        raise DataError(f"{source} is neither JSON nor CSV; convert its conversations to either")
    for where, record in read_records(source, source.format.replace("text", "json")):
        values = record.values() if where == str(source) and isinstance(record, dict) else ()
        items = next((one for one in values if isinstance(one, list)), None)
        if items is None or find_turns(record) is not None:
            yield where, record
        else:
            yield from ((f"{source} record {number}", one) for number, one in enumerate(items, 1))


@dataclass(frozen=True)
class EncodedConversations:
    """Conversation i is ids[offsets[i]:offsets[i + 1]]; `is_answer` is the loss mask."""

    ids: npt.NDArray[Any]
    is_answer: npt.NDArray[np.bool_]
    offsets: npt.NDArray[np.int64]
    num_cut: int
    """Conversations truncated to the maximum length."""
    numbers: tuple[int, ...] = ()
    """The index of each conversation among those that were read."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def content_id(self) -> str:
        """A hash of the ids and the loss mask."""
        parts = (self.ids, self.is_answer, self.offsets)
        return hash_bytes(b"".join(part.tobytes() for part in parts))


def encode_conversations(
    conversations: Iterable[Conversation], tokenizer: Tokenizer, max_ids: int
) -> EncodedConversations:
    """Render with the tokenizer's template, encode, mark the answers, and truncate to `max_ids`."""
    if tokenizer.chat_template is None:
        raise DataError("the tokenizer has no chat template; add one with Tokenizer.with_chat")
    template = ChatTemplate(tokenizer.chat_template)
    special_tokens = tuple(tokenizer.special_tokens)
    sizes = token_sizes(tokenizer)
    kept: list[npt.NDArray[Any]] = []
    marks: list[npt.NDArray[np.bool_]] = []
    numbers: list[int] = []
    num_seen = num_cut = longest = 0
    waiting = iter(conversations)
    while batch := list(itertools.islice(waiting, _BATCH_SIZE)):
        rendered = [_render(template, special_tokens, one) for one in batch]
        all_ids, offsets = tokenizer.encode_batch([text for text, _ in rendered])
        for number, (_, spans) in enumerate(rendered):
            ids = all_ids[offsets[number] : offsets[number + 1]]
            begins = np.cumsum(sizes[ids]) - sizes[ids]
            is_answer = np.zeros(len(ids), np.bool_)
            for first, last in np.searchsorted(begins, spans).tolist():
                is_answer[first:last] = True
            num_cut += len(ids) > max_ids
            longest = max(longest, len(ids))
            # The first id is never predicted.
            if is_answer[1:max_ids].any():
                numbers.append(num_seen + number)
                kept.append(ids[:max_ids].copy())
                marks.append(is_answer[:max_ids])
        num_seen += len(batch)
    if not num_seen:
        raise DataError("there is no conversation to train on; write one per line")
    if not kept:
        raise DataError(
            f"no answer begins within the context of {max_ids - 1} tokens, and the longest "
            f"conversation has {longest}; increase --model.context-length"
        )
    lengths = [len(ids) for ids in kept]
    return EncodedConversations(
        np.concatenate(kept),
        np.concatenate(marks),
        np.cumsum([0, *lengths], dtype=np.int64),
        num_cut=num_cut,
        numbers=tuple(numbers),
    )


def find_answers(
    template: ChatTemplate, messages: list[Message], special_tokens: tuple[str, ...]
) -> tuple[str, list[Span]]:
    """Return the rendered conversation, and the UTF-8 byte span of each answer in it.

    An answer is the text that the template appends to the generation prompt for an assistant turn,
    up to the last special token: the content and the end-of-turn token, but no newline after it.
    """
    text = template.render(messages)
    spans = []
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = template.render(messages[:number], add_generation_prompt=True)
        after = template.render(messages[: number + 1])
        if after == before or not (after.startswith(before) and text.startswith(after)):
            raise DataError(
                f"the chat template does not append the answer in message {number + 1} to the "
                f"earlier turns; use a template that renders turn by turn"
            )
        ends = [after.rfind(token) + len(token) for token in special_tokens if token in after]
        end = max([end for end in ends if end > len(before)], default=len(after))
        spans.append((len(before.encode()), len(after[:end].encode())))
    return text, spans


def _render(
    template: ChatTemplate, special_tokens: tuple[str, ...], conversation: Conversation
) -> tuple[str, list[Span]]:
    try:
        return find_answers(template, conversation.messages, special_tokens)
    except GroundupError as error:
        raise DataError(f"{conversation.where}: {error}") from error


IGNORED = -1
"""The target value that the loss ignores."""

# Random streams; 0 to 4 are in `data.batches.order`.
_ROW_SHUFFLES = 16
_VALIDATION = 17


class PackedRows:
    """The chosen conversations, packed into rows of `context_length` inputs."""

    num_parts = 3
    """Inputs, targets and positions."""

    def __init__(
        self,
        conversations: EncodedConversations,
        chosen: npt.NDArray[np.int64],
        context_length: int,
    ) -> None:
        self.conversations = conversations
        self.context_length = context_length
        lengths = np.diff(conversations.offsets)[chosen] - 1
        rows = pack(lengths, context_length)
        self.num_rows = int(rows.max()) + 1
        by_row = np.argsort(rows, kind="stable")
        ends = np.cumsum(np.bincount(rows))
        self._members = np.split(chosen[by_row], ends[:-1])

    @property
    def num_tokens(self) -> int:
        """The size of all rows, padding included."""
        return self.num_rows * self.context_length

    def fill(self, target: npt.NDArray[np.int64], rows: Starts) -> None:
        """Write inputs, targets and positions of some rows to `target`, (3, rows, context_length).

        A target is IGNORED unless the next token belongs to an answer. Every padding token is a
        sequence of its own, with the target IGNORED.
        """
        all_ids, is_answer = self.conversations.ids, self.conversations.is_answer
        offsets = self.conversations.offsets
        inputs, targets, positions = target
        inputs[...] = positions[...] = 0
        targets[...] = IGNORED
        for line, row in enumerate(rows.tolist()):
            start = 0
            for number in self._members[row].tolist():
                begin, end = int(offsets[number]), int(offsets[number + 1]) - 1
                part = slice(start, start + end - begin)
                inputs[line, part] = all_ids[begin:end]
                following = all_ids[begin + 1 : end + 1].astype(np.int64)
                targets[line, part] = np.where(is_answer[begin + 1 : end + 1], following, IGNORED)
                positions[line, part] = np.arange(end - begin)
                start = part.stop


class ShuffledRows:
    """Every row once per epoch, shuffled anew each epoch."""

    def __init__(
        self, num_rows: int, context_length: int, seed: int, stream: int = _ROW_SHUFFLES
    ) -> None:
        self.num_rows, self.context_length = num_rows, context_length
        self.num_tokens = num_rows * context_length
        self.seed, self._stream = check_seed(seed), stream

    def starts(self, first_sample: int, count: int) -> Starts:
        """Return the row index of each sample."""
        samples = number_samples(first_sample, count)
        epochs, positions = np.divmod(samples, np.uint64(self.num_rows))
        rows = permute(self.seed, self._stream, epochs, positions, self.num_rows)
        return rows.astype(np.int64)


def split(
    count: int, validation_fraction: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Split the indices of `count` conversations into training and validation, always the same.

    Validation gets at least three, or a fifth of fewer than 15; none if the fraction is 0.
    """
    least = max(1, min(3, count // 5))
    num_held = max(least, round(validation_fraction * count)) if validation_fraction else 0
    num_held = min(num_held, count - 1)
    order = ShuffledRows(count, 0, seed=0, stream=_VALIDATION).starts(0, count)
    return np.sort(order[num_held:]), np.sort(order[:num_held])


def pack(lengths: npt.NDArray[np.int64], capacity: int) -> npt.NDArray[np.int64]:
    """Assign each length to a row by best-fit decreasing bin packing; returns the row indices."""
    rows = np.empty(len(lengths), np.int64)
    by_room: list[list[int]] = [[] for _ in range(capacity + 1)]
    rooms = 0  # Bit r is set if a row has room for exactly r.
    num_rows = 0
    for number in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[number])
        if fitting := rooms >> length:
            room = length + (fitting & -fitting).bit_length() - 1
            row = by_room[room].pop()
            if not by_room[room]:
                rooms ^= 1 << room
        else:
            room, row = capacity, num_rows
            num_rows += 1
        rows[number] = row
        by_room[room - length].append(row)
        rooms |= 1 << (room - length)
    return rows
