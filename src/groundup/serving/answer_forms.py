"""What the two routes call an answer, and how each writes a text of it into JSON.

A choice is put together by hand: this is done for every token of every client.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from groundup.serving.choices import Piece, TokenSpelling

if TYPE_CHECKING:
    from pydantic import BaseModel

# ASCII, because some clients take other line ends of Unicode for the end of an event.
_quote = json.encoder.encode_basestring_ascii


@dataclass(frozen=True)
class AnswerForm:
    """The names around a text in the answers of one route."""

    id_prefix: str
    object: str
    chunk_object: str
    """The object in a stream."""
    whole: Callable[[str], str]
    piece: Callable[[str], str]
    """The text's field in a whole answer and in an event of a stream."""
    logprobs: Callable[[Sequence[Piece]], BaseModel]
    opening: str = ""
    """The field in the first event of a choice, where it begins with an event of its own."""

    def choice(
        self, index: int, field: str, pieces: Sequence[Piece] | None, finish_reason: str | None
    ) -> str:
        """One choice as JSON.

        index: which of them.
        field: its text, as `whole` or `piece` writes it.
        pieces: whose log-probabilities are told; None tells none.
        finish_reason: where the text is at its end.
        """
        told = (
            "null" if pieces is None else self.logprobs(pieces).model_dump_json(ensure_ascii=True)
        )
        reason = "null" if finish_reason is None else f'"{finish_reason}"'
        return f'{{"index":{index},{field},"logprobs":{told},"finish_reason":{reason}}}'


def text_form(spelling: TokenSpelling) -> AnswerForm:
    """Completions: a text."""

    def write(text: str) -> str:
        return f'"text":{_quote(text)}'

    return AnswerForm("cmpl", "text_completion", "text_completion", write, write, spelling.logprobs)


def chat_form(spelling: TokenSpelling) -> AnswerForm:
    """Chat completions: a message, in a stream what it grows by."""

    def write_message(text: str) -> str:
        return f'"message":{{"role":"assistant","content":{_quote(text)},"refusal":null}}'

    def write_delta(text: str) -> str:
        return f'"delta":{{"content":{_quote(text)}}}' if text else '"delta":{}'

    return AnswerForm(
        "chatcmpl",
        "chat.completion",
        "chat.completion.chunk",
        write_message,
        write_delta,
        spelling.chat_logprobs,
        opening='"delta":{"role":"assistant","content":""}',
    )
