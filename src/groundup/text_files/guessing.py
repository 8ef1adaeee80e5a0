"""Which encoding a text is in that is not UTF-8: the one in which it looks most like a language."""

from __future__ import annotations

import codecs
from collections.abc import Callable

# The longer ones first: a mark of UTF-32 begins with one of UTF-16.
_MARKS = {
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}
# What stands between words in many languages.
_PUNCTUATION = frozenset("“”„‘’«»–—…·¡¿°§©®€£\xa0、。「」『』（）！？：；，・ー")
_WESTERN = frozenset("áàâäãåæçéèêëíìîïñóòôöõøúùûüýßœ" + "ÁÀÂÄÅÆÇÉÈÊÍÎÑÓÔÖØÚÜŒ")
_CENTRAL = frozenset("áâăäąćčçďđéěęëíîłľňńóôöőřŕśšşťţúůüűýźžż" + "ÁĄĆČĎÉĚĘÍŁŇÓÖŐŘŚŠŤÚŮÜÝŹŽŻ")
# The commonest ideographs of Chinese, in both ways of writing.
_COMMON = frozenset(
    "的一是不了在人有我他中大上到和你地出道也年就那要下以生自着去之家可她得天小多心好看起然事"
    "这来国个说们为时会后学对过里没还这這來國個說們為時會後學對過裡沒還"
)
# No text has these.
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\f\r\x1b"))
_LATIN = ("cp1252", "cp1250")
# A text must be at home by so much; ideographs of any kind count half.
_LEAST = 0.55


def guess_encoding(sample: bytes) -> str | None:
    """The name of the likeliest encoding, None if none is likely.

    sample: from the beginning of a line on; what it ends in the middle of is left out.
    """
    for name, marks in _MARKS.items():
        if sample.startswith(marks):
            return name
    if len(sample.translate(None, _CONTROLS)) < len(sample):
        return None
    scores = {name: _share_at_home(sample, name, score) for name, score in _CANDIDATES.items()}
    best = max(scores, key=lambda name: scores[name])
    return best if scores[best] >= _LEAST else None


def _share_at_home(sample: bytes, name: str, score: Callable[[str], float]) -> float:
    """Of the characters beyond ASCII, how many the languages of an encoding use.

    In a script of its own a character that stands alone says nothing.
    """
    try:
        text = codecs.getincrementaldecoder(name)().decode(sample)
    except UnicodeDecodeError:
        return 0.0
    beyond = [index for index, one in enumerate(text) if one > "\x7f"]
    total = 0.0
    for index in beyond:
        neighbours = text[max(0, index - 1) : index] + text[index + 1 : index + 2]
        if name in _LATIN or not neighbours.isascii():
            total += 1.0 if text[index] in _PUNCTUATION else score(text[index])
    return total / max(len(beyond), 1)


def _letters(first: str, last: str) -> Callable[[str], float]:
    """Small letters count more, since another encoding may have them where this has capitals."""
    return lambda one: (first <= one <= last) * (1.0 if one.islower() else 0.5)


def _east_asian(at_home: Callable[[str], bool]) -> Callable[[str], float]:
    return lambda one: 1.0 if at_home(one) else 0.5 * ("\u4e00" <= one <= "\u9fff")


# The first of equals is taken.
_CANDIDATES: dict[str, Callable[[str], float]] = {
    "cp1252": _WESTERN.__contains__,
    "cp1250": _CENTRAL.__contains__,
    "cp1251": _letters("\u0400", "\u045f"),
    "koi8-r": _letters("\u0400", "\u045f"),
    "cp1253": _letters("\u0386", "\u03ce"),
    "shift_jis": _east_asian(lambda one: "\u3041" <= one <= "\u30fe"),
    "euc_jp": _east_asian(lambda one: "\u3041" <= one <= "\u30fe"),
    "euc_kr": _east_asian(lambda one: "\uac00" <= one <= "\ud7a3"),
    "gb18030": _east_asian(_COMMON.__contains__),
    "big5": _east_asian(_COMMON.__contains__),
}
