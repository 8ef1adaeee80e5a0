"""Text that is not UTF-8: what encoding it is in, and decoding it on the way.

A byte order mark counts most, then that it is UTF-8, then what the text looks like.
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
# So much of a text is looked at to guess its encoding, and so much to see that it is UTF-16.
_SAMPLE_BYTES, _HEAD_BYTES = 1 << 13, 1 << 12
NOT_UTF8 = "not UTF-8, which --encoding or --errors replace may read"
CUT = "ends inside a character, and is read up to there"
_CHINESE = "的一是不了在人有我他中大上到和你地出道也年就那要下以生自去之家可得天小多心好看起然事"
# The letters that texts in an encoding are full of, by which close guesses are told apart: those
# of Russian without the ones that are common letters of Hebrew in another encoding.
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
# Of a few bytes that are not ASCII, in a text of Western Europe or code.
_SIGNS = "[©®°§±µ·²³½×÷£€–—‘“”•…]"
_MARK_BAD = "groundup-mark-bad"
# Half of a surrogate pair is no UTF-8 either, so those who look for bad bytes find the document.
codecs.register_error(_MARK_BAD, lambda error: ("\udcff", getattr(error, "end", 0)))


def marked_encoding(data: bytes) -> str | None:
    """UTF-16 or UTF-32 where a byte order mark says so, or where every other byte is 0."""
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
    return ("utf-16-be" if first > second else "utf-16-le") if is_utf16 else None


def as_utf8(
    stream: IO[bytes],
    name: object,
    reading: Reading,
    notes: list[str],
    guess: Callable[[bytes], str | None],
    is_first: bool,
) -> Iterator[bytes | memoryview]:
    """Yield a stream as UTF-8, without a byte order mark, whatever encoding it is in.

    ASCII is the same in all; the first chunk with more in it tells which one it is. Without an
    --encoding it is the one that `guess` finds in that chunk. Bad bytes of UTF-8 stay, unless they
    are replaced: whoever takes the text apart names the place.

    is_first: the stream begins where its file does.
    """
    found: str | None = None
    decoder: Any = None
    rest, is_over = b"", False
    while not is_over:
        chunk = stream.read(_CHUNK_BYTES)
        is_over = len(chunk) < _CHUNK_BYTES
        if is_first:
            found = marked_encoding(chunk)
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
    """Whether the beginning of a text shows that it is UTF-8: it holds more than ASCII."""
    head = head[: len(head) - num_cut_bytes(head)]
    return not head.isascii() and find_invalid_utf8(head) < 0 and not marked_encoding(head)


def leave_out_bad(piece: DocumentBatch, source: Source, reading: Reading) -> DocumentBatch:
    """The documents of a piece that are UTF-8, or all with U+FFFD, as `errors` says."""
    position = find_invalid_utf8(piece.data)
    if position < 0:
        return piece
    view = memoryview(piece.data)
    # Of a long document, the pieces before have been given.
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
    """The encoding of a text from this chunk on; None as long as it reads the same in all."""
    if not chunk.isascii():
        if not encoding:
            return guess(chunk) or "utf-8"
        cut = 0 if is_last else num_cut_bytes(chunk)
        return encoding if find_invalid_utf8(chunk[: len(chunk) - cut]) >= 0 else "utf-8"
    if encoding:
        # Some encodings are all ASCII, as iso2022_jp is, or UTF-16 of such letters.
        text = codecs.getincrementaldecoder(encoding)("replace").decode(chunk, final=is_last)
        return None if text == chunk.decode() else encoding
    return None


@functools.lru_cache(maxsize=256)
def find_encoding(source: Source) -> str | None:
    """What the first piece of a source that is not ASCII looks like; None for UTF-8 or nothing."""
    with open_source(source) as (stream, _):
        while chunk := stream.read(_CHUNK_BYTES):
            if not chunk.isascii():
                return guess_encoding(chunk)
    return None


def guess_encoding(sample: bytes) -> str | None:
    """The most likely encoding of a text that is not UTF-8; None if it is or none is likely."""
    # Where most of what is not ASCII is sound UTF-8, the rest is damage.
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
    # A few bytes may be anything, but most often they are these letters and signs.
    if len(high) < 6:
        known = f"{_LETTERS['cp1252']}|{_SIGNS}"
        is_known = all(re.match(known, one.decode("cp1252", "replace")) for one in high)
        return "cp1252" if is_known and not re.search(rb"[\0-\x08\x0e-\x1a]", sample) else None
    from charset_normalizer import from_bytes

    # What is cut inside a character is no text in its encoding.
    tails = (sample, sample[:-1]) if sample[-1] >= 0x80 else (sample,)
    matches = [one for tail in tails for one in from_bytes(tail, cp_isolation=list(_LETTERS))]
    least = min((one.chaos for one in matches), default=0)
    names = [one.encoding for one in matches if one.chaos <= least + 0.1]
    # These two differ in few letters, and equal texts are listed once.
    names = ["cp1252"] * ("cp1250" in names) + names
    shares = [_share_of_letters(sample, one) for one in names]
    share, found = max(zip(shares, names, strict=True), key=lambda it: it[0], default=(0.0, ""))
    return found.replace("koi8_r", "koi8-r") if share >= 0.3 else None


def _share_of_letters(sample: bytes, encoding: str) -> float:
    """How much of what is not ASCII are the letters that texts in an encoding are full of; those of
    Chinese that are listed make up a quarter of a text."""
    text = sample.decode(encoding, "replace")
    num_letters = len(re.findall(f"{_LETTERS[encoding]}|{_SIGNS}", text))
    share = num_letters / max(1, len(re.findall(r"[^\0-\x7f]", text)))
    return min(1.0, 4 * share) if encoding in ("gb18030", "big5") else share


def num_cut_bytes(data: bytes | memoryview) -> int:
    """How many bytes at the end begin a character of UTF-8 that does not come."""
    tail = bytes(data[-3:])
    return len(tail) - codecs.utf_8_decode(tail, "ignore", False)[1]
