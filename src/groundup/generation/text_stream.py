"""Ids to text as they come: whole characters only, and nothing of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from groundup.errors import ConfigError
from groundup.tokenizer import Tokenizer


class TextStream:
    """The pieces join to the decoded text, cut where the stop string begins that is complete first.

    What may still be the beginning of a stop string is held back until it is known.

    tokenizer: knows the bytes of each id.
    stop: the stop strings.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._vocab = tokenizer.vocab
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = check_stop_strings(stop)
        self._longest = max(map(len, self._stop), default=1)
        self._held = ""
        self.stopped = False
        """Whether a stop string has come: the text is complete."""

    def push(self, id: int) -> str:
        """Take an id and give the text that is certain now, which may be none."""
        if self.stopped:
            return ""
        # A vocabulary padded to a round size has ids that stand for nothing.
        piece = self._decoder.decode(self._vocab.get(id, b""))
        return self._release(piece) if self._stop else piece

    def finish(self) -> str:
        """The ids are at their end: give what was held back, with U+FFFD for half a character."""
        if self.stopped:
            return ""
        text = self._release(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        return text + held

    def _release(self, piece: str) -> str:
        text = self._held + piece
        found = [(start + len(s), start) for s in self._stop if (start := text.find(s)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        cut = len(text) - self._num_undecided(text)
        self._held = text[cut:]
        return text[:cut]

    def _num_undecided(self, text: str) -> int:
        """How many of the last characters may begin a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0


def check_stop_strings(stop: Sequence[str]) -> tuple[str, ...]:
    """The stop strings as a tuple, none of them empty."""
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if not all(isinstance(one, str) for one in strings):
        raise ConfigError(f"stop is {stop!r:.80}; it must be a text or several")
    if "" in strings:
        raise ConfigError("a stop string is empty: it would end every text before it begins")
    return strings
