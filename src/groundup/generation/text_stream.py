"""Ids to text as they come: whole characters only, and nothing of a stop string."""

import codecs
from collections.abc import Sequence

from groundup.tokenizer import Tokenizer


class TextStream:
    """The pieces join to the decoded text, cut where the stop string begins that is complete first.

    What may still be the beginning of a stop string is held back until it is known.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._vocab = tokenizer.vocab
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = tuple(stop)
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
        # The longest end of the text that may begin a stop string.
        longest = max(map(len, self._stop), default=1) - 1
        lengths = range(min(longest, len(text)), 0, -1)
        ends = (
            length for length in lengths if any(s.startswith(text[-length:]) for s in self._stop)
        )
        cut = len(text) - next(ends, 0)
        self._held = text[cut:]
        return text[:cut]
