"""Conversations as ids, each rendered and encoded whole, with the ids of the answers marked."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from groundup.data.chats.reading import Conversation
from groundup.data.shards.check import token_sizes
from groundup.errors import DataError, GroundupError
from groundup.files import hash_bytes
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.chat_template import ChatTemplate, Message

Span = tuple[int, int]

# So many are encoded at once: enough for all cores, little memory.
_BATCH_SIZE = 1024


@dataclass(frozen=True)
class EncodedConversations:
    """Conversation i is ids[offsets[i]:offsets[i + 1]]; `is_answer` marks what is to be learned."""

    ids: npt.NDArray[Any]
    is_answer: npt.NDArray[np.bool_]
    offsets: npt.NDArray[np.int64]
    num_cut: int
    """Those that were longer than allowed and lost their end."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def content_id(self) -> str:
        """Equal where the same ids are to be learned in the same conversations."""
        parts = (self.ids, self.is_answer, self.offsets)
        return hash_bytes(b"".join(part.tobytes() for part in parts))


def encode_conversations(
    conversations: Iterable[Conversation], tokenizer: Tokenizer, max_ids: int
) -> EncodedConversations:
    """Render by the tokenizer's template, encode, mark the answers, and keep up to `max_ids`."""
    if tokenizer.chat_template is None:
        raise DataError("the tokenizer has no chat template; make one with its with_chat")
    template = ChatTemplate(tokenizer.chat_template)
    special_tokens = tuple(tokenizer.special_tokens)
    sizes = token_sizes(tokenizer)
    kept: list[npt.NDArray[Any]] = []
    marks: list[npt.NDArray[np.bool_]] = []
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
                kept.append(ids[:max_ids].copy())
                marks.append(is_answer[:max_ids])
        num_seen += len(batch)
    if not num_seen:
        raise DataError("there is no conversation to learn from: write one a line")
    if not kept:
        raise DataError(
            f"no answer begins within the context of {max_ids - 1} ids, and the longest "
            f"conversation has {longest}; give the model a larger --model.context-length"
        )
    lengths = [len(ids) for ids in kept]
    return EncodedConversations(
        np.concatenate(kept),
        np.concatenate(marks),
        np.cumsum([0, *lengths], dtype=np.int64),
        num_cut=num_cut,
    )


def find_answers(
    template: ChatTemplate, messages: list[Message], special_tokens: tuple[str, ...]
) -> tuple[str, list[Span]]:
    """The rendered conversation, and begin and end of every answer in it, in bytes of UTF-8.

    An answer is what the template adds for an assistant's turn behind the prompt for it, up to the
    last special token: its content and the token that ends the turn, not the line end after it.
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
                f"the chat template does not put the answer of message {number + 1} behind what it "
                f"renders for the turns before; use one that adds turn after turn"
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
