"""Files that are not UTF-8, turned into it on the way, from the encoding that the user names."""

import codecs
import contextlib
import io
from typing import IO, Any

from groundup.errors import ConfigError, DataError
from groundup.text_files.documents import Errors
from groundup.text_files.inputs import Source

_CHUNK_BYTES = 1 << 18
_MARK_BAD = "groundup-mark-bad"
_HANDLERS = {"strict": "strict", "replace": "replace", "skip": _MARK_BAD}

# These begin no text in another encoding; the longer ones first.
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
    if encoding is None:
        return
    try:
        # A codec of bytes to bytes is one too, and only decoding tells.
        with contextlib.suppress(UnicodeError):
            b"x".decode(encoding)
    except LookupError:
        raise ConfigError(
            f"encoding is {encoding!r}; it must be one that Python knows, such as latin-1, cp1252, "
            f"utf-16, shift_jis, gb18030 or koi8-r"
        ) from None


def is_seven_bit(encoding: str | None) -> bool:
    """Whether all text in an encoding is ASCII, and so UTF-8 of something else."""
    with contextlib.suppress(UnicodeError):
        data = "éü東한".encode(encoding or "utf-8", "ignore")
        return bool(data) and data.isascii()
    return False


def is_utf8(stream: IO[bytes], encoding: str) -> bool:
    """Whether all of a stream is UTF-8, and not in the encoding that files may be in instead.

    stream: what is read.
    encoding: UTF-16 and UTF-32 are full of NUL, and some encodings are ASCII alone.
    """
    is_wide = codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))
    is_ascii = True
    decoder = codecs.getincrementaldecoder("utf-8")()
    while chunk := stream.read(_CHUNK_BYTES):
        try:
            decoder.decode(chunk)
        except UnicodeDecodeError:
            return False
        if is_wide and b"\0" in chunk:
            return False
        is_ascii = is_ascii and chunk.isascii()
    return not decoder.getstate()[0] and not (is_ascii and is_seven_bit(encoding))


def as_utf8(stream: IO[bytes], encoding: str, errors: Errors, source: Source) -> IO[bytes]:
    """A stream of UTF-8 out of one in another encoding.

    stream: what is read.
    encoding: its encoding, unless a byte order mark says that it is UTF-16 or UTF-32.
    errors: strict raises DataError for bytes that are not of it; the other ways are as everywhere.
    source: named by errors.
    """
    return io.BufferedReader(_Transcoder(stream, encoding, errors, source), _CHUNK_BYTES)


class _Transcoder(io.RawIOBase):
    def __init__(self, stream: IO[bytes], encoding: str, errors: Errors, source: Source) -> None:
        self._stream = stream
        self._encoding = encoding
        self._source = source
        self._errors = errors
        self._decoder: codecs.IncrementalDecoder | None = None
        self._ready = memoryview(b"")
        self._is_over = False

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        view = memoryview(target).cast("B")
        while not self._ready and not self._is_over:
            chunk = self._stream.read(_CHUNK_BYTES)
            self._is_over = not chunk
            if self._decoder is None:
                marked = (name for mark, name in _MARKS.items() if chunk.startswith(mark))
                encoding = next(marked, self._encoding)
                self._decoder = codecs.getincrementaldecoder(encoding)(_HANDLERS[self._errors])
            try:
                text = self._decoder.decode(chunk, final=self._is_over)
            except UnicodeError as error:
                raise DataError(
                    f"{self._source} is neither UTF-8 nor {self._encoding}: {error}; name another "
                    f"--encoding, or use --errors replace or --errors skip"
                ) from None
            self._ready = memoryview(text.encode("utf-8", "surrogatepass"))
        count = min(len(view), len(self._ready))
        view[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count
