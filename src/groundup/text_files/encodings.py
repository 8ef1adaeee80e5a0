"""Detecting and decoding text that is not UTF-8.

A byte order mark takes precedence, then valid UTF-8, then a guess from the text.
"""

import codecs
import functools
import re
from collections.abc import Callable, Iterator
from typing import IO, Any

from groundup._native import find_invalid_utf8
from groundup.errors import DataError
from groundup.text_files.documents import DocumentBatch, Reading, Source, not_utf8, pack
from groundup.text_files.opening import open_source

_CHUNK_BYTES = 1 << 18
# How much of a text is examined to guess its encoding, and to detect UTF-16.
_SAMPLE_BYTES, _HEAD_BYTES = 1 << 13, 1 << 12
NOT_UTF8 = "not UTF-8; try --encoding or --errors replace"
_BINARY = "binary"
CUT = "ends in the middle of a character, which is dropped"
_CHINESE = "的一是不了在人有我他中大上到和你地出道也年就那要下以生自去之家可得天小多心好看起然事"
# Frequent letters of texts in each encoding, to decide between close guesses. The Russian ones omit
# letters whose bytes are frequent in Hebrew encodings.
_LETTERS = {
    "cp1252": "[áàâäãåæçéèêëíìîïñóòôöõøúùûüýßœÉÀÖÜÄ¿¡«»’]",
    "cp1250": "[áâăäąćčçďđéěęëíîłľňńóôöőřŕśšşťţúůüűýźžż]",
    **dict.fromkeys(("cp1251", "koi8_r", "cp866"), "[а-шыьэюяё]"),
    "cp1253": "[ά-ία-ωό-ώ]",
    "cp1254": "[çğıöşüâÇĞİÖŞÜ]",
    "cp1255": "[א-ת]",
    "cp1256": "[ء-ي]",
    **dict.fromkeys(("shift_jis", "euc_jp"), "[ぁ-ヾ]"),
    "euc_kr": "[가-힣]",
    "gb18030": f"[{_CHINESE}这来国个说们为时会后学对过里没还]",
    "big5": f"[{_CHINESE}這來國個說們為時會後學對過裡沒還]",
}
# Frequent symbols in Western European text and source code.
_SIGNS = "[©®°§±µ·²³½×÷£€–—‘“”•…]"
_MARK_BAD = "groundup-mark-bad"
# A decoding error becomes byte 0xff under surrogateescape, which marks the document as invalid.
codecs.register_error(_MARK_BAD, lambda error: ("\udcff", getattr(error, "end", 0)))


def marked_encoding(data: bytes) -> str | None:
    """Detect UTF-16 or UTF-32 by a byte order mark, or UTF-16 by zeros in every other byte; many
    other zeros are `_BINARY`."""
    if data.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if data.find(b"\0", 0, _HEAD_BYTES) < 0 or len(data) < 8:
        return None
    head = data[:_HEAD_BYTES]
    first, second = head[::2].count(0), head[1::2].count(0)
    most = max(first, second)
    is_utf16 = most > len(head) // 5 and min(first, second) <= most // 50
    if not is_utf16:
        return _BINARY if first + second > len(head) // 5 else None
    return "utf-16-be" if first > second else "utf-16-le"


def as_utf8(
    stream: IO[bytes],
    name: object,
    reading: Reading,
    notes: list[str],
    guess: Callable[[bytes], str | None],
    is_first: bool,
) -> Iterator[bytes | memoryview]:
    """Yield a stream in any encoding as UTF-8 without a byte order mark.

    The first chunk that is not ASCII decides the encoding: UTF-8, else `reading.encoding`, else the
    result of `guess`. Invalid UTF-8 is passed on unless errors is "replace"; `drop_invalid` or the
    reader of the format handles it.

    is_first: whether the stream starts at the beginning of its file.
    """
    found: str | None = None
    decoder: Any = None
    rest, is_over = b"", False
    while not is_over:
        chunk = stream.read(_CHUNK_BYTES)
        is_over = len(chunk) < _CHUNK_BYTES
        if is_first:
            found = marked_encoding(chunk)
            if found == _BINARY and reading.encoding is None:
                raise DataError(f"{name} contains zero bytes: binary data, not text; leave it out")
            found = None if found == _BINARY else found
            chunk, is_first = chunk.removeprefix(codecs.BOM_UTF8), False
        found = found or _encoding_of(chunk, reading.encoding, is_over, guess)
        if found not in ("utf-8", None):
            if decoder is None:
                handler = _MARK_BAD if reading.errors == "skip" else reading.errors
                decoder = codecs.getincrementaldecoder(found)(handler)
                if found not in ("utf-16", "utf-32", reading.encoding):
                    notes.append(f"read as {found}")
            try:
                yield decoder.decode(chunk, final=is_over).encode("utf-8", "surrogateescape")
            except UnicodeError as error:
                raise DataError(
                    f"{name} is neither UTF-8 nor {found}: {error}; name another --encoding, or "
                    f"use --errors replace or --errors skip"
                ) from None
            continue
        data = memoryview(rest + chunk if rest else chunk)
        cut = len(data) - num_cut_bytes(data)
        data, rest = data[:cut], bytes(data[cut:])
        if is_over and rest:
            notes.append(CUT)
        yield str(data, "utf-8", "replace").encode() if reading.errors == "replace" else data


def is_utf8(head: bytes) -> bool:
    """Whether the beginning of a text is valid UTF-8 and not just ASCII."""
    head = head[: len(head) - num_cut_bytes(head)]
    return not head.isascii() and find_invalid_utf8(head) < 0 and not marked_encoding(head)


def drop_invalid(piece: DocumentBatch, source: Source, reading: Reading) -> DocumentBatch:
    """Apply `errors` to invalid UTF-8: raise DataError, insert U+FFFD, or drop the documents."""
    position = find_invalid_utf8(piece.data)
    if position < 0:
        return piece
    view = memoryview(piece.data)
    # A long document cannot be dropped: its earlier pieces have already been yielded.
    if reading.errors == "strict" or piece.is_alone:
        before = str(view[max(0, position - 20) : position], "utf-8", "replace")
        raise not_utf8(f"{source}, after {before!r}")
    texts: list[bytes | memoryview] = [view[begin:end] for begin, end in piece.bounds.tolist()]
    if reading.errors == "replace":
        texts = [str(text, "utf-8", "replace").encode() for text in texts]
    data, bounds = pack([text for text in texts if find_invalid_utf8(text) < 0], reading.glue)
    return piece._replace(data=data, bounds=bounds)


def _encoding_of(
    chunk: bytes, encoding: str | None, is_last: bool, guess: Callable[[bytes], str | None]
) -> str | None:
    """Detect the encoding by this chunk; None while all of the text so far is plain ASCII."""
    if not chunk.isascii():
        if not encoding:
            return guess(chunk) or "utf-8"
        cut = 0 if is_last else num_cut_bytes(chunk)
        return encoding if find_invalid_utf8(chunk[: len(chunk) - cut]) >= 0 else "utf-8"
    if encoding:
        # Some encodings use only ASCII bytes: iso2022_jp, or UTF-16 of some letters.
        text = codecs.getincrementaldecoder(encoding)("replace").decode(chunk, final=is_last)
        return None if text == chunk.decode() else encoding
    return None


@functools.lru_cache(maxsize=256)
def find_encoding(source: Source) -> str | None:
    """Guess the encoding of a source from its first chunk that is not ASCII."""
    with open_source(source) as (stream, _):
        while chunk := stream.read(_CHUNK_BYTES):
            if not chunk.isascii():
                return guess_encoding(chunk)
    return None


def guess_encoding(sample: bytes) -> str | None:
    """Return the most likely encoding of a text; None if it is UTF-8 or no guess is good."""
    # If most non-ASCII characters are valid UTF-8, the others are corruption.
    if sample.startswith(codecs.BOM_UTF8):
        return None
    text = sample[: len(sample) - num_cut_bytes(sample)].decode("utf-8", "surrogateescape")
    num_bad = len(re.findall("[\udc80-\udcff]", text))
    if num_bad <= len(re.findall("[^\0-\x7f]", text)) - num_bad:
        return None
    first = re.search(rb"[\x80-\xff]", sample)
    lines = sample[first.start() if first else 0 :].split(b"\n")
    return _guess(b"\n".join(line for line in lines if not line.isascii())[:_SAMPLE_BYTES])


@functools.lru_cache(maxsize=256)
def _guess(sample: bytes) -> str | None:
    high = re.findall(rb"[\x80-\xff]", sample)
    # Too few bytes for statistics: most often they are these letters and symbols.
    if len(high) < 6:
        known = f"{_LETTERS['cp1252']}|{_SIGNS}"
        is_known = all(re.match(known, one.decode("cp1252", "replace")) for one in high)
        return "cp1252" if is_known and not re.search(rb"[\0-\x08\x0e-\x1a]", sample) else None
    from charset_normalizer import from_bytes

    # The sample may end within a two-byte character, which would rule out its encoding.
    tails = (sample, sample[:-1]) if sample[-1] >= 0x80 else (sample,)
    matches = [one for tail in tails for one in from_bytes(tail, cp_isolation=list(_LETTERS))]
    least = min((one.chaos for one in matches), default=0)
    names = [one.encoding for one in matches if one.chaos <= least + 0.1]
    # These two differ in few letters, and only one is listed if both give the same text.
    names = ["cp1252"] * ("cp1250" in names) + names
    fractions = {one: _letter_fraction(sample, one) for one in names}
    found = max(fractions, key=fractions.__getitem__, default="")
    return found.replace("koi8_r", "koi8-r") if fractions.get(found, 0) >= 0.3 else None


def _letter_fraction(sample: bytes, encoding: str) -> float:
    """Return the fraction of non-ASCII characters that are frequent letters of the encoding. The
    listed Chinese characters make up only a quarter of a text, so their fraction is scaled."""
    text = sample.decode(encoding, "replace")
    num_letters = len(re.findall(f"{_LETTERS[encoding]}|{_SIGNS}", text))
    fraction = num_letters / max(1, len(re.findall(r"[^\0-\x7f]", text)))
    return min(1.0, 4 * fraction) if encoding in ("gb18030", "big5") else fraction


def num_cut_bytes(data: bytes | memoryview) -> int:
    """Return the number of bytes at the end that begin an incomplete UTF-8 character."""
    tail = bytes(data[-3:])
    return len(tail) - codecs.utf_8_decode(tail, "ignore", False)[1]
