"""From ids to a choice of an answer: pieces of text, the log-probabilities of tokens, and JSON.

Pieces join to the whole text; none holds half a character or any part of a stop string.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from groundup.generation.request import NewToken
from groundup.generation.text_stream import TextStream
from groundup.tokenizer import Tokenizer

# JSON has no infinity; OpenAI writes this for what cannot happen.
_LOWEST = -9999.0


class Entry(NamedTuple):
    """A token with its log-probability and those of the likeliest ids."""

    id: int
    log_probability: float
    alternatives: tuple[tuple[int, float], ...]
    # Characters of the choice's text before the token, and up to its end.
    begin: int
    end: int


class Piece(NamedTuple):
    """Some more of the text, and its token if log-probabilities are asked for."""

    text: str
    entry: Entry | None = None


class ChoiceText:
    """Takes the tokens of one row, gives pieces of text. `finish_reason` is set when it is done."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], with_entries: bool) -> None:
        self._stream = TextStream(tokenizer, stop)
        self._with_entries = with_entries
        # Where tokens begin and end is known from the text before anything is held back.
        self._all_text = TextStream(tokenizer)
        self._num_decoded = self._num_released = 0
        self._undecided: list[Entry] = []
        self._text = ""
        self.num_tokens = 0
        self.finish_reason: Literal["stop", "length"] | None = None

    @property
    def is_done(self) -> bool:
        return self.finish_reason is not None

    def push(self, token: NewToken) -> list[Piece]:
        """Take the next token; the pieces that are certain now."""
        if token.finish_reason == "stop":
            self._text += self._stream.finish()
            self.finish_reason = "stop"
            return self._release()
        self.num_tokens += 1
        self._text += self._stream.push(token.id)
        if self._with_entries:
            begin = self._num_decoded
            self._num_decoded += len(self._all_text.push(token.id))
            assert token.log_probability is not None
            known = (token.id, token.log_probability, token.alternatives)
            self._undecided.append(Entry(*known, begin, self._num_decoded))
        if self._stream.stopped:
            self.finish_reason = "stop"
        elif token.finish_reason == "length":
            self._text += self._stream.finish()
            self.finish_reason = "stop" if self._stream.stopped else "length"
        return self._release()

    def _release(self) -> list[Piece]:
        pieces = []
        while self._undecided and self._is_certain(self._undecided[0]):
            entry = self._undecided.pop(0)
            length = entry.end - self._num_released
            text, self._text = self._text[:length], self._text[length:]
            self._num_released += len(text)
            pieces.append(Piece(text, entry))
        if self._text and (self.is_done or not self._with_entries):
            # With entries this is U+FFFD for half a character at the end, which no token has.
            pieces.append(Piece(self._text))
            self._text = ""
        return pieces

    def _is_certain(self, entry: Entry) -> bool:
        """Whether the text up to the token's end is; at the end of the text, its beginning."""
        num_certain = self._num_released + len(self._text)
        return entry.end <= num_certain or (self.is_done and entry.begin < num_certain)


class TokenSpelling:
    """Tokens in JSON: their text, or `bytes:\\xe2` if it is not whole characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._vocab = tokenizer.vocab

    def __getitem__(self, id: int) -> str:
        data = self._vocab.get(id)
        if data is None:
            return f"<id {id}>"
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Parallel lists, one element a token. The lists of ids are not OpenAI's."""
        entries = [piece.entry for piece in pieces if piece.entry is not None]
        likeliest = [self.likeliest(entry) for entry in entries]
        return {
            "tokens": [self[entry.id] for entry in entries],
            "token_logprobs": [max(entry.log_probability, _LOWEST) for entry in entries],
            "top_logprobs": [named for named, _ in likeliest],
            "text_offset": [entry.begin for entry in entries],
            "token_ids": [entry.id for entry in entries],
            "top_ids": [ids for _, ids in likeliest],
        }

    def likeliest(self, entry: Entry) -> tuple[dict[str, float], list[int]]:
        """The likeliest tokens and the chosen one by text, and their ids in the same order."""
        values = dict(entry.alternatives)
        values.setdefault(entry.id, entry.log_probability)
        named: dict[str, float] = {}
        for id, value in values.items():
            # Two ids may have the same text, a special token and an ordinary one.
            name = self[id] if self[id] not in named else f"<id {id}>"
            named[name] = max(value, _LOWEST)
        return named, list(values)

    def chat_logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """One object a token, with as many of the likeliest as were asked for."""
        content = [
            self._token(entry.id, entry.log_probability)
            | {"top_logprobs": [self._token(id, value) for id, value in entry.alternatives]}
            for _, entry in pieces
            if entry is not None
        ]
        return {"content": content, "refusal": None}

    def _token(self, id: int, log_probability: float) -> dict[str, Any]:
        data, value = list(self._vocab.get(id, b"")), max(log_probability, _LOWEST)
        return {"token": self[id], "logprob": value, "bytes": data, "id": id}
