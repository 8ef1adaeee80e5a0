"""Incremental encoding of text in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from groundup.errors import TokenizerError
from groundup.tokenizer.native import Encoder


def encode_pieces(encoder: Encoder, pieces: Iterable[str]) -> Iterator[int]:
    """Yield the ids of the joined pieces, holding back text that a later piece could affect."""
    pending = b""
    half = ""
    searched = 0
    for piece in pieces:
        piece = half + piece
        # A high surrogate is kept until its low surrogate arrives.
        half = piece[-1:] if "\ud800" <= piece[-1:] <= "\udbff" else ""
        pending += without_lone_surrogates(piece[:-1] if half else piece).encode()
        # After a search without a cut, wait until the text has doubled: total time stays linear.
        if len(pending) < 2 * searched:
            continue
        try:
            ids, used = encoder.encode_stream(pending)
        except ValueError as error:
            raise TokenizerError(str(error)) from None
        yield from ids
        searched = 0 if used else len(pending)
        pending = pending[used:]
    yield from encoder.encode(pending + without_lone_surrogates(half).encode())


def without_lone_surrogates(text: str) -> str:
    """Replace surrogate pairs by their characters and lone surrogates by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
