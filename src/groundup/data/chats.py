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
from groundup.text_files.records import SHAPES, Record, find_pair, find_turns, read_records
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
    is_pair: bool = False
    """Whether it is one of two: the chosen answer of a record, or after it the rejected one."""


def read_conversations(
    inputs: Sequence[str | os.PathLike[str]], *, strict: bool = False, is_quiet: bool = False
) -> Iterator[Conversation]:
    """Yield the conversations of files, folders or globs, in order.

    Skips records that are not conversations and logs a warning, unless `is_quiet`. Raises DataError
    for the first one if `strict`, or if no record is a conversation. The first record decides
    whether all are pairs of answers.
    """
    complaints: list[DataError] = []
    num_read, has_pairs = 0, False
    for source in find_sources(inputs):
        for where, record in _records(source):
            try:
                found = _conversations_of(record, where)
                is_pair = found[0].is_pair
                if num_read and is_pair != has_pairs:
                    raise DataError(f"{where} mixes pairs of answers with conversations")
            except DataError as error:
                if strict:
                    raise
                complaints.append(error)
                continue
            num_read, has_pairs = num_read + 1, is_pair
            yield from found
    if complaints and not num_read:
        raise complaints[0]
    if complaints and not is_quiet:
        shown = "; ".join(map(str, complaints[:_COMPLAINTS_SHOWN]))
        more = len(complaints) - _COMPLAINTS_SHOWN
        shown += f"; and {more:,} more" if more > 0 else ""
        _log.warning(
            "skipped %d of %d records: %s", len(complaints), num_read + len(complaints), shown
        )


def are_pairs(inputs: Sequence[str | os.PathLike[str]]) -> bool:
    """Whether the files hold pairs of answers, which want DPO."""
    first = itertools.islice(read_conversations(inputs, is_quiet=True), 1)
    return any(one.is_pair for one in first)


def _conversations_of(record: Any, where: str) -> list[Conversation]:
    if isinstance(record, DataError):
        raise record
    sides = find_pair(record)
    if sides is None:
        return [Conversation(_messages_of(record, find_turns(record), where), where)]
    pair = [Conversation(_messages_of(record, turns, where), where, True) for turns in sides]
    if pair[0] == pair[1]:
        raise DataError(f"{where} has equal answers in chosen and rejected; remove it")
    return pair


def _messages_of(record: Any, turns: list[Any] | None, where: str) -> list[Message]:
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
    """Conversation i is ids[offsets[i]:offsets[i + 1]]; `is_answer` is the loss mask. Pair i is
    the conversations 2i, with the chosen answer, and 2i + 1."""

    ids: npt.NDArray[Any]
    is_answer: npt.NDArray[np.bool_]
    offsets: npt.NDArray[np.int64]
    num_cut: int
    """Conversations truncated to the maximum length, or left out."""
    numbers: tuple[int, ...] = ()
    """The index of each conversation, or the first of each pair, among those that were read."""
    has_pairs: bool = False

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of ids of each conversation, or of the longer one of each pair."""
        lengths: npt.NDArray[np.int64] = np.diff(self.offsets)
        return lengths.reshape(-1, 2).max(1) if self.has_pairs else lengths

    @cached_property
    def content_id(self) -> str:
        """A hash of the ids and the loss mask."""
        parts = (self.ids, self.is_answer, self.offsets)
        return hash_bytes(b"".join(part.tobytes() for part in parts))


def encode_conversations(
    conversations: Iterable[Conversation], tokenizer: Tokenizer, max_ids: int
) -> EncodedConversations:
    """Render with the tokenizer's template, encode, mark the answers, and truncate to `max_ids`;
    longer pairs are left out."""
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
            is_left_out = batch[number].is_pair and len(ids) > max_ids
            # The first id is never predicted.
            if is_answer[1:max_ids].any() and not is_left_out:
                numbers.append(num_seen + number)
                kept.append(ids[:max_ids].copy())
                marks.append(is_answer[:max_ids])
        num_seen += len(batch)
        has_pairs = batch[0].is_pair
    if not num_seen:
        raise DataError("there is no conversation to train on; write one per line")
    if has_pairs:
        known = set(numbers)
        is_whole = [number ^ 1 in known for number in numbers]
        kept, marks = (list(itertools.compress(one, is_whole)) for one in (kept, marks))
        numbers = list(itertools.compress(numbers, is_whole))[::2]
    if not kept:
        what = "pair of answers fits" if has_pairs else "answer begins"
        raise DataError(
            f"no {what} within the context of {max_ids - 1} tokens, and the longest "
            f"conversation has {longest}; increase --model.context-length"
        )
    lengths = [len(ids) for ids in kept]
    return EncodedConversations(
        np.concatenate(kept),
        np.concatenate(marks),
        np.cumsum([0, *lengths], dtype=np.int64),
        num_cut=num_cut,
        numbers=tuple(numbers),
        has_pairs=has_pairs,
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
    """The chosen conversations, packed into rows of `context_length` inputs. A row of pairs is a
    row of chosen answers and, after it, one of the rejected answers."""

    def __init__(
        self,
        conversations: EncodedConversations,
        chosen: npt.NDArray[np.int64],
        context_length: int,
    ) -> None:
        self.conversations = conversations
        self.context_length = context_length
        self.has_pairs = conversations.has_pairs
        self.row_length = context_length * (2 if self.has_pairs else 1)
        self.num_parts = 4 if self.has_pairs else 3
        """Inputs, targets and positions, and the numbers of pairs."""
        lengths = conversations.lengths[chosen] - 1
        rows = pack(lengths, context_length)
        self.num_rows = int(rows.max()) + 1
        by_row = np.argsort(rows, kind="stable")
        ends = np.cumsum(np.bincount(rows))
        self._members = np.split(chosen[by_row], ends[:-1])

    @property
    def num_tokens(self) -> int:
        """The size of all rows, padding included."""
        return self.num_rows * self.row_length

    def fill(self, target: npt.NDArray[np.int64], rows: Starts) -> None:
        """Write the parts of some rows to `target`, (num_parts, rows, row_length).

        A target is IGNORED unless the next token belongs to an answer. Every padding token is a
        sequence of its own, with the target IGNORED.
        """
        all_ids, is_answer = self.conversations.ids, self.conversations.is_answer
        offsets, lengths = self.conversations.offsets, self.conversations.lengths
        num_sides = 1 + self.has_pairs
        inputs, targets, positions, *pairs = target
        inputs[...] = positions[...] = 0
        targets[...] = IGNORED
        for line, row in enumerate(rows.tolist()):
            start = 0
            for number in self._members[row].tolist():
                for side in range(num_sides):
                    begin, last = offsets[num_sides * number + side :][:2].tolist()
                    end, first = last - 1, start + side * self.context_length
                    part = slice(first, first + end - begin)
                    inputs[line, part] = all_ids[begin:end]
                    following = all_ids[begin + 1 : last].astype(np.int64)
                    targets[line, part] = np.where(is_answer[begin + 1 : last], following, IGNORED)
                    positions[line, part] = np.arange(end - begin)
                    for numbers in pairs:
                        numbers[line, part] = number
                start += int(lengths[number]) - 1

    def batches(self, size: int, num_rows: int | None = None) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the parts of `size` rows at a time, in order."""
        num_rows = min(num_rows or self.num_rows, self.num_rows)
        for first in range(0, num_rows, size):
            numbers = np.arange(first, min(first + size, num_rows))
            parts = np.empty((self.num_parts, len(numbers), self.row_length), np.int64)
            self.fill(parts, numbers)
            yield parts


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
