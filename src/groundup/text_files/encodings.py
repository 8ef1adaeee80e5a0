"""Files that are not UTF-8, decoded on the way."""

import codecs
import contextlib
from collections.abc import Iterator
from typing import IO, Any

from groundup.errors import ConfigError, DataError

_CHUNK_BYTES = 1 << 18
_MARK_BAD = "groundup-mark-bad"
_HANDLERS = {"strict": "strict", "replace": "replace", "skip": _MARK_BAD}
# The longer ones first: a mark of UTF-32 begins with one of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# Half of a surrogate pair is no UTF-8 either, so those who look for bad bytes find the document.
codecs.register_error(_MARK_BAD, lambda error: ("\udcff", getattr(error, "end", 0)))


def check_encoding(encoding: str | None) -> None:
    """Raise ConfigError for the name of an encoding that Python does not have."""
    try:
        # A codec of bytes to bytes is one too, and only decoding tells.
        with contextlib.suppress(UnicodeError):
            b"x".decode(encoding or "utf-8")
    except LookupError:
        raise ConfigError(
            f"encoding is {encoding!r}; it must be one that Python knows, such as latin-1, cp1252, "
            f"utf-16, shift_jis, gb18030 or koi8-r"
        ) from None


def as_utf8(stream: IO[bytes], encoding: str, errors: str, name: str) -> Iterator[bytes]:
    """Yield UTF-8 out of a stream in `encoding`, or one that turns out to be UTF-8 already.

    ASCII is the same in either; the first chunk with more in it tells which one it is.
    """
    decoder: Any = None
    is_over = False
    while not is_over:
        chunk = stream.read(_CHUNK_BYTES)
        while 0 < len(chunk) < _CHUNK_BYTES and (more := stream.read(_CHUNK_BYTES - len(chunk))):
            chunk += more
        is_over = len(chunk) < _CHUNK_BYTES
        found = None if decoder else _encoding_of(chunk, encoding, is_last=is_over)
        if found is not None:
            decoder = codecs.getincrementaldecoder(found)(_HANDLERS[errors])
        try:
            text = decoder.decode(chunk, final=is_over) if decoder else chunk.decode("ascii")
        except UnicodeError as error:
            raise DataError(
                f"{name} is neither UTF-8 nor {encoding}: {error}; name another --encoding, or use "
                f"--errors replace or --errors skip"
            ) from None
        yield text.encode("utf-8", "surrogatepass")


def marked_encoding(data: bytes) -> str | None:
    """UTF-16 or UTF-32 where a byte order mark says so."""
    return next((name for mark, name in _MARKS.items() if data.startswith(mark)), None)


def _encoding_of(chunk: bytes, encoding: str, *, is_last: bool) -> str | None:
    """The encoding of a text from this chunk on; None as long as it reads the same in both."""
    if marked := marked_encoding(chunk):
        return marked
    if chunk.isascii():
        # Some encodings are all ASCII, as iso2022_jp is, or UTF-16 of such letters.
        text = codecs.getincrementaldecoder(encoding)("replace").decode(chunk, final=is_last)
        return None if text == chunk.decode() else encoding
    try:
        codecs.getincrementaldecoder("utf-8")().decode(chunk, final=is_last)
    except UnicodeDecodeError:
        return encoding
    return "utf-8"
