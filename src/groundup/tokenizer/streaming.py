"""Text that comes in pieces: ids before it ends, characters once they are whole."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator

from groundup.errors import TokenizerError
from groundup.tokenizer.native import Encoder


def encode_pieces(encoder: Encoder, pieces: Iterable[str]) -> Iterator[int]:
    """The ids of the joined pieces; what a later piece could still change is held back."""
    pending = b""
    half = ""
    searched = 0
    for piece in pieces:
        piece = half + piece
        # The first half of a surrogate pair waits for the second.
        half = piece[-1:] if "\ud800" <= piece[-1:] <= "\udbff" else ""
        pending += _to_utf8(piece[:-1] if half else piece)
        # Where no cut was found, look again only when the text has doubled.
        if len(pending) < 2 * searched:
            continue
        try:
            ids, used = encoder.encode_stream(pending)
        except ValueError as error:
            raise TokenizerError(str(error)) from None
        yield from ids
        searched = 0 if used else len(pending)
        pending = pending[used:]
    yield from encoder.encode(pending + _to_utf8(half))


class StreamingDecoder:
    """Decodes ids into text as they come; a character appears once its last byte is there."""

    def __init__(self, decode_bytes: Callable[[Iterable[int]], bytes]) -> None:
        self._decode_bytes = decode_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, *ids: int) -> str:
        """Take some ids, give the text that is complete now (often less than they stand for)."""
        return self._decoder.decode(self._decode_bytes(ids))

    def finish(self) -> str:
        """Give what is left: U+FFFD for a character that never became complete."""
        return self._decoder.decode(b"", final=True)


def without_lone_surrogates(text: str) -> str:
    """Whole surrogate pairs become characters; lone halves, which UTF-8 cannot hold, U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _to_utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return without_lone_surrogates(text).encode()
