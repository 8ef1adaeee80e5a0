"""The text of one choice as its ids come: pieces, and for each token its place and likelihoods.

Pieces join to the whole text; none holds half a character or any part of a stop string.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from groundup.generation.text_stream import TextStream

if TYPE_CHECKING:
    from groundup.generation.request import NewToken
    from groundup.tokenizer import Tokenizer

# JSON has no infinity; OpenAI writes this for what cannot happen.
_LOWEST = -9999.0


class Entry(NamedTuple):
    """A token with its likelihoods: those of the likeliest ids and of its own."""

    id: int
    log_probability: float | None
    alternatives: tuple[tuple[int, float], ...]
    # Characters of the choice's text: where the token begins, and how many there are after it.
    begin: int
    end: int


class Piece(NamedTuple):
    """Some more of the text, and the token it stands for where likelihoods are wanted."""

    text: str
    entry: Entry | None = None


class ChoiceWriter:
    """Takes the tokens of one row, gives pieces of text. `finish_reason` is set when it is done."""

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str], *, echo: str = "", with_entries: bool
    ) -> None:
        self._stream = TextStream(tokenizer, stop)
        self._with_entries = with_entries
        # Where tokens begin and end is known from the text before anything is held back.
        self._all_text = TextStream(tokenizer)
        self._num_decoded = self._num_written = len(echo)
        self._undecided: list[Entry] = []
        self._text = ""
        self.num_tokens = 0
        self.finish_reason: Literal["stop", "length"] | None = None

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
            self._undecided.append(self._entry(token))
        if self._stream.stopped:
            self.finish_reason = "stop"
        elif token.finish_reason == "length":
            self._text += self._stream.finish()
            self.finish_reason = "stop" if self._stream.stopped else "length"
        return self._release()

    def _entry(self, token: NewToken) -> Entry:
        begin = self._num_decoded
        self._num_decoded += len(self._all_text.push(token.id))
        return Entry(token.id, token.log_probability, token.alternatives, begin, self._num_decoded)

    def _release(self) -> list[Piece]:
        if not self._with_entries:
            text, self._text = self._text, ""
            return [Piece(text)] if text else []
        pieces = []
        while self._undecided and self._is_certain(self._undecided[0]):
            entry = self._undecided.pop(0)
            length = entry.end - self._num_written
            text, self._text = self._text[:length], self._text[length:]
            self._num_written += len(text)
            pieces.append(Piece(text, entry))
        if self.is_done() and self._text:
            # U+FFFD for half a character at the end, which is no token's.
            text, self._text = self._text, ""
            pieces.append(Piece(text))
        return pieces

    def _is_certain(self, entry: Entry) -> bool:
        """Whether the text up to the token's end is; at the end of the text, its beginning."""
        num_certain = self._num_written + len(self._text)
        if self.finish_reason is None or entry.end <= num_certain:
            return entry.end <= num_certain
        return entry.begin < num_certain


class TokenSpelling:
    """How tokens are written in JSON: as text, or as `bytes:\\xe2` where they are no whole text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._vocab = tokenizer.vocab
        self._known: dict[int, str] = {}

    def __getitem__(self, id: int) -> str:
        if id not in self._known:
            self._known[id] = self._spell(id)
        return self._known[id]

    def likeliest(self, entry: Entry) -> tuple[dict[str, float], list[int]]:
        """The likeliest and the chosen by their texts, and their ids in the same order."""
        values = dict(entry.alternatives)
        values.setdefault(entry.id, entry.log_probability or 0.0)
        named: dict[str, float] = {}
        for id, value in values.items():
            # Two ids may stand for the same text, a special token and an ordinary one.
            name = self[id] if self[id] not in named else f"<id {id}>"
            named[name] = finite(value)
        return named, list(values)

    def _spell(self, id: int) -> str:
        data = self._vocab.get(id)
        if data is None:
            return f"<id {id}>"
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def finite(log_probability: float) -> float:
    """A log-probability that JSON can hold."""
    return max(log_probability, _LOWEST)
