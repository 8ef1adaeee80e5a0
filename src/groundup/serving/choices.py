"""From ids to the text of a choice: pieces of it, and for each token its position and
log-probabilities.

Pieces join to the whole text; none holds half a character or any part of a stop string.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from groundup.generation.scoring import log_softmax_tables
from groundup.generation.text_stream import TextStream
from groundup.serving.chat_protocol import ChatLogprobs, ChatToken, ChatTokenEntry
from groundup.serving.protocol import Logprobs

if TYPE_CHECKING:
    from groundup.generation.request import NewToken
    from groundup.model import TransformerLM
    from groundup.tokenizer import Tokenizer

# JSON has no infinity; OpenAI writes this for what cannot happen.
_LOWEST = -9999.0


class Entry(NamedTuple):
    """A token with its log-probability and those of the likeliest ids."""

    id: int
    log_probability: float | None
    alternatives: tuple[tuple[int, float], ...]
    # Characters of the choice's text: where the token begins, and how many there are after it.
    begin: int
    end: int


class Piece(NamedTuple):
    """Some more of the text, and the token it stands for where log-probabilities are wanted."""

    text: str
    entry: Entry | None = None


class ChoiceText:
    """Takes the tokens of one row, gives pieces of text. `finish_reason` is set when it is done."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str],
        *,
        echo: str | None = None,
        with_entries: bool,
    ) -> None:
        self._stream = TextStream(tokenizer, stop)
        self._with_entries = with_entries
        # Who has a prompt scored counts on an entry for every new token, the one that ends a
        # document too: lm-evaluation-harness asks for one token and drops the last entry.
        self._shows_end = with_entries and echo is not None
        # Where tokens begin and end is known from the text before anything is held back.
        self._all_text = TextStream(tokenizer)
        self._num_decoded = self._num_released = len(echo or "")
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
            if self._shows_end:
                self._undecided.append(Entry(*token[:3], self._num_decoded, self._num_decoded))
            return self._release()
        self.num_tokens += 1
        self._text += self._stream.push(token.id)
        if self._with_entries:
            begin = self._num_decoded
            self._num_decoded += len(self._all_text.push(token.id))
            self._undecided.append(Entry(*token[:3], begin, self._num_decoded))
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
        if self._text and (self.is_done() or not self._with_entries):
            # With entries this is U+FFFD for half a character at the end: it is no token's.
            pieces.append(Piece(self._text))
            self._text = ""
        return pieces

    def _is_certain(self, entry: Entry) -> bool:
        """Whether the text up to the token's end is; at the end of the text, its beginning."""
        num_certain = self._num_released + len(self._text)
        return entry.end <= num_certain or (self.is_done() and entry.begin < num_certain)


def score_prompt(
    model: TransformerLM, tokenizer: Tokenizer, ids: Sequence[int], num_alternatives: int
) -> list[Entry]:
    """An entry for each id of a prompt; the first has no log-probability, as nothing precedes it.

    Args:
        model: whose log softmax of the logits is told, by the id that follows each position.
        tokenizer: tells which characters each id stands for.
        ids: the prompt, within the model's context.
        num_alternatives: how many of the likeliest ids are told for each position.
    """
    scores: list[tuple[float | None, tuple[tuple[int, float], ...]]] = [(None, ())]
    for own, table in log_softmax_tables(model, ids):
        best = table.topk(min(num_alternatives, table.shape[-1]), dim=-1)
        pairs = map(zip, best.indices.tolist(), best.values.tolist())
        scores += zip(own, map(tuple, pairs), strict=True)
    decoder = tokenizer.decode_stream()
    entries, end = [], 0
    for id, (value, alternatives) in zip(ids, scores, strict=True):
        begin, end = end, end + len(decoder.push(id))
        entries.append(Entry(id, value, alternatives, begin, end))
    # A prompt may end within a character.
    entries[-1] = entries[-1]._replace(end=end + len(decoder.finish()))
    return entries


class TokenSpelling:
    """A token in JSON: its text, or `bytes:\\xe2` where it is not whole characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._vocab = tokenizer.vocab
        self._known: dict[int, str] = {}

    def __getitem__(self, id: int) -> str:
        if id not in self._known:
            self._known[id] = self._spell(id)
        return self._known[id]

    def logprobs(self, pieces: Sequence[Piece]) -> Logprobs:
        """What OpenAI's clients are told of the tokens of some pieces."""
        result = Logprobs()
        for _, entry in pieces:
            if entry is None:
                continue
            result.tokens.append(self[entry.id])
            result.token_ids.append(entry.id)
            result.text_offset.append(entry.begin)
            if entry.log_probability is None:
                result.token_logprobs.append(None)
                result.top_logprobs.append(None)
                result.top_ids.append([])
                continue
            likeliest, ids = self.likeliest(entry)
            result.token_logprobs.append(max(entry.log_probability, _LOWEST))
            result.top_logprobs.append(likeliest)
            result.top_ids.append(ids)
        return result

    def chat_logprobs(self, pieces: Sequence[Piece]) -> ChatLogprobs:
        """The same as chat completions tell it: of the likeliest only as many as were asked for."""
        return ChatLogprobs(
            content=[
                ChatTokenEntry(
                    **self._token(entry.id, entry.log_probability or 0.0),
                    top_logprobs=[
                        ChatToken(**self._token(id, value)) for id, value in entry.alternatives
                    ],
                )
                for _, entry in pieces
                if entry is not None
            ]
        )

    def _token(self, id: int, log_probability: float) -> dict[str, Any]:
        return {
            "token": self[id],
            "logprob": max(log_probability, _LOWEST),
            "bytes": list(self._vocab.get(id, b"")),
            "id": id,
        }

    def likeliest(self, entry: Entry) -> tuple[dict[str, float], list[int]]:
        """The likeliest and the chosen by their texts, and their ids in the same order."""
        values = dict(entry.alternatives)
        values.setdefault(entry.id, entry.log_probability or 0.0)
        named: dict[str, float] = {}
        for id, value in values.items():
            # Two ids may stand for the same text, a special token and an ordinary one.
            name = self[id] if self[id] not in named else f"<id {id}>"
            named[name] = max(value, _LOWEST)
        return named, list(values)

    def _spell(self, id: int) -> str:
        data = self._vocab.get(id)
        if data is None:
            return f"<id {id}>"
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
