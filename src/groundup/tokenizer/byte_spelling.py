"""GPT-2's way of writing bytes as visible characters, so that any token can stand in a text file.

A byte that is a visible Latin-1 character is written as that character; the other 68 (controls,
space, delete, no-break space, soft hyphen) take the characters from U+0100 on, in order: a space
reads `Ġ`.
"""

import codecs
from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import Any, TypeVar

_Spelled = TypeVar("_Spelled", str, bytes)

_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [byte for byte in range(256) if byte not in set(_VISIBLE)]
_CHARACTER_OF_BYTE = {byte: chr(byte) for byte in _VISIBLE} | {
    byte: chr(0x100 + index) for index, byte in enumerate(_HIDDEN)
}

# A string of 256 characters is what Python's own single-byte codecs are made of, so both directions
# run in C over a whole vocabulary at once.
ALPHABET = "".join(_CHARACTER_OF_BYTE[byte] for byte in range(256))
_ENCODING_MAP = codecs.charmap_build(ALPHABET)


def spell_bytes(data: bytes) -> str:
    """Write bytes as visible characters, one for each byte."""
    return codecs.charmap_decode(data, "strict", ALPHABET)[0]


def read_spelling(text: str) -> bytes:
    """Read visible characters back as bytes; any other is a UnicodeEncodeError."""
    return codecs.charmap_encode(text, "strict", _ENCODING_MAP)[0]


def spell_tokens(tokens: Iterable[bytes]) -> list[str]:
    """Spell many tokens in one go."""
    tokens = list(tokens)
    return _cut(spell_bytes(b"".join(tokens)), tokens)


def read_spelled_tokens(spellings: Iterable[str]) -> list[bytes]:
    """Read many spelled tokens in one go; each character is one byte, so the lengths carry over."""
    spellings = list(spellings)
    return _cut(read_spelling("".join(spellings)), spellings)


def _cut(joined: _Spelled, parts: list[Any]) -> list[_Spelled]:
    bounds = accumulate(map(len, parts), initial=0)
    return [joined[begin:end] for begin, end in pairwise(bounds)]
