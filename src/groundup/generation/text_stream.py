"""Incremental decoding of ids to text: whole characters, up to a stop string."""

import codecs
from collections.abc import Sequence

from groundup.tokenizer import Tokenizer


class TextStream:
    """The pieces join to the decoded text, cut at the stop string that is completed first.

    Text that may be the beginning of a stop string is held back until that is decided.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._vocab = tokenizer.vocab
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = tuple(stop)
        self._held = ""
        self.stopped = False
        """Whether a stop string was found: the text is complete."""

    def push(self, id: int) -> str:
        """Add an id and return the text that is now certain, which may be empty."""
        if self.stopped:
            return ""
        # A padded vocabulary has ids without a token.
        piece = self._decoder.decode(self._vocab.get(id, b""))
        return self._release(piece) if self._stop else piece

    def finish(self) -> str:
        """Return the text held back at the end, with U+FFFD for an incomplete character."""
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
        # Hold back the longest suffix that is a prefix of a stop string.
        longest = max(map(len, self._stop), default=1) - 1
        lengths = range(min(longest, len(text)), 0, -1)
        ends = (
            length for length in lengths if any(s.startswith(text[-length:]) for s in self._stop)
        )
        cut = len(text) - next(ends, 0)
        self._held = text[cut:]
        return text[:cut]
