"""Files that are not UTF-8: decoded on the way, and a guess at their encoding for the error."""

import codecs
import contextlib
import io
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
# Without those that are common letters of Hebrew in another encoding.
_RUSSIAN = "абвгдежзийклмнопрстуфхцчшыьэюяё"
_KANA = "".join(map(chr, range(0x3041, 0x30FF)))
_HANGUL = "".join(map(chr, range(0xAC00, 0xD7A4)))
_CHINESE = "的一是不了在人有我他中大上到和你地出道也年就那要下以生自去之家可得天小多心好看起然事"
_LETTERS = {
    "cp1252": "áàâäãåæçéèêëíìîïñóòôöõøúùûüýßœÉÀÖÜÄ¿¡«»’",
    "cp1250": "áâăäąćčçďđéěęëíîłľňńóôöőřŕśšşťţúůüűýźžż",
    "cp1251": _RUSSIAN,
    "koi8_r": _RUSSIAN,
    "cp866": _RUSSIAN,
    "cp1253": "αβγδεζηθικλμνξοπρσςτυφχψωάέήίόύώ",
    "cp1254": "çğıöşüâÇĞİÖŞÜ",
    "cp1255": "אבגדהוזחטיךכלםמןנסעףפץצקרשת",
    "cp1256": "ابتثجحخدذرزسشصضطظعغفقكلمنهويةىأإء",
    "shift_jis": _KANA,
    "euc_jp": _KANA,
    "euc_kr": _HANGUL,
    "gb18030": _CHINESE + "这来国个说们为时会后学对过里没还",
    "big5": _CHINESE + "這來國個說們為時會後學對過裡沒還",
}
"""The letters that texts in an encoding are full of, by which close guesses are told apart."""

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


def as_utf8(stream: IO[bytes], encoding: str, errors: str, name: str) -> IO[bytes]:
    """A stream of UTF-8 out of one in `encoding`, or one that turns out to be UTF-8 already."""
    return io.BufferedReader(_Transcoder(stream, encoding, errors, name), _CHUNK_BYTES)


class _Transcoder(io.RawIOBase):
    """Decodes ASCII in either way until the first chunk with more in it tells which it is."""

    def __init__(self, stream: IO[bytes], encoding: str, errors: str, name: str) -> None:
        self._stream = stream
        self._encoding = encoding
        self._errors = errors
        self._name = name
        self._decoder: Any = None
        self._ready = memoryview(b"")
        self._is_over = False

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        while not self._ready and not self._is_over:
            chunk = b""
            while len(chunk) < _CHUNK_BYTES and (more := self._stream.read(_CHUNK_BYTES)):
                chunk += more
            self._is_over = len(chunk) < _CHUNK_BYTES
            encoding = None
            if self._decoder is None:
                encoding = _encoding_of(chunk, self._encoding, is_last=self._is_over)
            if encoding is not None:
                handler = _HANDLERS[self._errors]
                self._decoder = codecs.getincrementaldecoder(encoding)(handler)
            try:
                text = (self._decoder or codecs.getincrementaldecoder("ascii")()).decode(
                    chunk, final=self._is_over
                )
            except UnicodeError as error:
                raise DataError(
                    f"{self._name} is neither UTF-8 nor {self._encoding}: {error}; name another "
                    f"--encoding, or use --errors replace or --errors skip"
                ) from None
            self._ready = memoryview(text.encode("utf-8", "surrogatepass"))
        view = memoryview(target).cast("B")
        count = min(len(view), len(self._ready))
        view[:count], self._ready = self._ready[:count], self._ready[count:]
        return count


def _encoding_of(chunk: bytes, encoding: str, *, is_last: bool) -> str | None:
    """The encoding of a text from this chunk on; None as long as it reads the same in both."""
    for mark, name in _MARKS.items():
        if chunk.startswith(mark):
            return name
    # Some encodings are all ASCII, as iso2022_jp, and UTF-16 is full of NUL.
    if codecs.lookup(encoding).name.startswith(("utf-16", "utf-32")) and b"\0" in chunk:
        return encoding
    if chunk.isascii():
        return encoding if "éü東한".encode(encoding, "ignore").isascii() else None
    try:
        codecs.getincrementaldecoder("utf-8")().decode(chunk, final=is_last)
    except UnicodeDecodeError:
        return encoding
    return "utf-8"


def guess_encoding(sample: bytes) -> str | None:
    """The name of the likeliest encoding of a text that is not UTF-8, None if none is likely."""
    for mark, name in _MARKS.items():
        if sample.startswith(mark):
            return name
    # A stray byte or two may be anything.
    if len(sample) - len(sample.translate(None, bytes(range(128, 256)))) < 4:
        return None
    from charset_normalizer import from_bytes

    matches = list(from_bytes(sample, cp_isolation=list(_LETTERS)))
    if not matches:
        return None
    close = [one for one in matches if one.chaos <= matches[0].chaos + 0.1]
    rank = {one.encoding: (_count_letters(sample, one.encoding), one.coherence) for one in close}
    # These two differ in few letters, and equal texts are listed once.
    if "cp1250" in rank:
        rank["cp1252"] = (_count_letters(sample, "cp1252"), 1.0)
    found = max(rank, key=lambda name: rank[name])
    return found.replace("koi8_r", "koi8-r")


def _count_letters(sample: bytes, encoding: str) -> int:
    """How many characters are those that the languages of an encoding use most."""
    text = sample.decode(encoding, "ignore")
    return sum(one in _LETTERS[encoding] for one in text if one > "\x7f")
