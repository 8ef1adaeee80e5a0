"""Turn a sequence's token ids into a choice of the response: text pieces, logprobs and JSON.

The pieces concatenate to the whole text; none contains a partial character or part of a stop
string.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from groundup.generation.request import NewToken
from groundup.generation.text_stream import TextStream
from groundup.tokenizer import Tokenizer

# JSON has no infinity; OpenAI's API uses this value for tokens of zero probability.
_MIN_LOGPROB = -9999.0


class Entry(NamedTuple):
    """A token with its log-probability and those of the most likely tokens."""

    id: int
    log_probability: float
    alternatives: tuple[tuple[int, float], ...]
    # The token's range of characters in the choice's text.
    begin: int
    end: int


class Piece(NamedTuple):
    """The next part of the text, and its token if logprobs are requested."""

    text: str
    entry: Entry | None = None


class ChoiceText:
    """Decodes one row's tokens to pieces of text; `finish_reason` is set at the end."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], with_entries: bool) -> None:
        self._stream = TextStream(tokenizer, stop)
        self._with_entries = with_entries
        # Without stop strings, so that it gives each token's range of characters at once.
        self._all_text = TextStream(tokenizer)
        self._num_decoded = self._num_released = 0
        self._pending: list[Entry] = []
        self._text = ""
        self.num_tokens = 0
        self.finish_reason: Literal["stop", "length"] | None = None

    @property
    def is_done(self) -> bool:
        return self.finish_reason is not None

    def push(self, token: NewToken) -> list[Piece]:
        """Add the next token; return the pieces that can no longer change."""
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
            self._pending.append(Entry(*known, begin, self._num_decoded))
        if self._stream.stopped:
            self.finish_reason = "stop"
        elif token.finish_reason == "length":
            self._text += self._stream.finish()
            self.finish_reason = "stop" if self._stream.stopped else "length"
        return self._release()

    def _release(self) -> list[Piece]:
        pieces = []
        while self._pending and self._is_final(self._pending[0]):
            entry = self._pending.pop(0)
            length = entry.end - self._num_released
            text, self._text = self._text[:length], self._text[length:]
            self._num_released += len(text)
            pieces.append(Piece(text, entry))
        if self._text and (self.is_done or not self._with_entries):
            # With entries, only a final U+FFFD for a partial character, which belongs to no token.
            pieces.append(Piece(self._text))
            self._text = ""
        return pieces

    def _is_final(self, entry: Entry) -> bool:
        """Whether the token's text is final; once done, whether any of it was kept."""
        num_final = self._num_released + len(self._text)
        return entry.end <= num_final or (self.is_done and entry.begin < num_final)


class TokenSpelling:
    """Token strings for JSON: the text, or `bytes:\\xe2` if it is not valid UTF-8."""

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
        """Parallel lists with one element per token. The lists of ids extend OpenAI's format."""
        entries = [piece.entry for piece in pieces if piece.entry is not None]
        likeliest = [self.likeliest(entry) for entry in entries]
        return {
            "tokens": [self[entry.id] for entry in entries],
            "token_logprobs": [max(entry.log_probability, _MIN_LOGPROB) for entry in entries],
            "top_logprobs": [named for named, _ in likeliest],
            "text_offset": [entry.begin for entry in entries],
            "token_ids": [entry.id for entry in entries],
            "top_ids": [ids for _, ids in likeliest],
        }

    def likeliest(self, entry: Entry) -> tuple[dict[str, float], list[int]]:
        """The most likely tokens and the chosen one by text, and their ids in the same order."""
        values = dict(entry.alternatives)
        values.setdefault(entry.id, entry.log_probability)
        named: dict[str, float] = {}
        for id, value in values.items():
            # A special token and an ordinary one may have the same text.
            name = self[id] if self[id] not in named else f"<id {id}>"
            named[name] = max(value, _MIN_LOGPROB)
        return named, list(values)

    def chat_logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """One object per token, with as many top logprobs as requested."""
        content = [
            self._token(entry.id, entry.log_probability)
            | {"top_logprobs": [self._token(id, value) for id, value in entry.alternatives]}
            for _, entry in pieces
            if entry is not None
        ]
        return {"content": content, "refusal": None}

    def _token(self, id: int, log_probability: float) -> dict[str, Any]:
        data, value = list(self._vocab.get(id, b"")), max(log_probability, _MIN_LOGPROB)
        return {"token": self[id], "logprob": value, "bytes": data, "id": id}
