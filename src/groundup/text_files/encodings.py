"""Text that is not UTF-8: decoded on the way, and a guess at its encoding for the error."""

import codecs
import re
from collections.abc import Iterator
from typing import IO, Any

from groundup.errors import DataError

_CHUNK_BYTES = 1 << 18
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
_MARK_BAD = "groundup-mark-bad"
# Half of a surrogate pair is no UTF-8 either, so those who look for bad bytes find the document.
codecs.register_error(_MARK_BAD, lambda error: ("\udcff", getattr(error, "end", 0)))


def marked_encoding(data: bytes) -> str | None:
    """UTF-16 or UTF-32 where a byte order mark says so."""
    if data.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    return "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else None


def as_utf8(stream: IO[bytes], encoding: str, errors: str, name: str) -> Iterator[bytes]:
    """Yield UTF-8 out of a stream in `encoding`, or one that turns out to be UTF-8 already.

    ASCII is the same in either; the first chunk with more in it tells which one it is.
    """
    decoder: Any = None
    is_over = False
    while not is_over:
        chunk = stream.read(_CHUNK_BYTES)
        is_over = len(chunk) < _CHUNK_BYTES
        if decoder is None and (found := _encoding_of(chunk, encoding, is_over)):
            handler = _MARK_BAD if errors == "skip" else errors
            decoder = codecs.getincrementaldecoder(found)(handler)
        try:
            text = decoder.decode(chunk, final=is_over) if decoder else chunk.decode("ascii")
        except UnicodeError as error:
            raise DataError(
                f"{name} is neither UTF-8 nor {encoding}: {error}; name another --encoding, or use "
                f"--errors replace or --errors skip"
            ) from None
        yield text.encode("utf-8", "surrogatepass")


def _encoding_of(chunk: bytes, encoding: str, is_last: bool) -> str | None:
    """The encoding of a text from this chunk on; None as long as it reads the same in both."""
    if chunk.isascii():
        # Some encodings are all ASCII, as iso2022_jp is, or UTF-16 of such letters.
        text = codecs.getincrementaldecoder(encoding)("replace").decode(chunk, final=is_last)
        return None if text == chunk.decode() else encoding
    try:
        codecs.getincrementaldecoder("utf-8")().decode(chunk, final=is_last)
        return "utf-8"
    except UnicodeDecodeError:
        return encoding


def guess_encoding(sample: bytes) -> str | None:
    """The likeliest encoding of a text that is not UTF-8; None if none is likely."""
    # A stray byte or two may be anything.
    if len(re.findall(rb"[\x80-\xff]", sample)) < 4:
        return None
    from charset_normalizer import from_bytes

    matches = list(from_bytes(sample, cp_isolation=list(_LETTERS)))
    names = [one.encoding for one in matches if one.chaos <= matches[0].chaos + 0.1]
    # These two differ in few letters, and equal texts are listed once.
    names = ["cp1252"] * ("cp1250" in names) + names
    counts = [len(re.findall(_LETTERS[one], sample.decode(one, "ignore"))) for one in names]
    found = max(zip(counts, names, strict=True), key=lambda pair: pair[0], default=(0, None))[1]
    return found.replace("koi8_r", "koi8-r") if found else None
