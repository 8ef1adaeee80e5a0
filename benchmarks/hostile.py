"""Texts made to bring an encoder down: an endless word, runs of blanks, no line breaks."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable

from corpora import SEPARATOR


def _random_letters(size: int) -> str:
    return "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=size))


def _random_characters(size: int) -> str:
    # Characters of long standing: tools differ in how new the Unicode is that they know.
    known = [
        character
        for character in map(chr, range(0x21, 0x30000))
        if unicodedata.category(character) not in {"Cn", "Cs"}
    ]
    return "".join(random.Random(0).choices(known, k=size))


# By name: what it is in a few words, and the text of about so many characters.
HOSTILE: dict[str, tuple[str, Callable[[int], str]]] = {
    "letter": ('"a" * 1,000,000', lambda size: "a" * size),
    "spaces": ("1,000,000 spaces", lambda size: " " * size),
    "newlines": ("1,000,000 newlines", lambda size: "\n" * size),
    "blanks": ("spaces and newlines in turn", lambda size: " \n" * (size // 2)),
    "emoji": ("1 MB of emoji", lambda size: "\U0001f600" * (size // 4)),
    "digits": ("1,000,000 digits", lambda size: "0123456789" * (size // 10)),
    "punctuation": ("punctuation in turn", lambda size: "!?" * (size // 2)),
    "apostrophes": ("1,000,000 apostrophes", lambda size: "'" * size),
    "alternating": ("a letter and a digit in turn", lambda size: "a1" * (size // 2)),
    "one_word": ("one word of random letters", _random_letters),
    "ideographs": ("one ideograph again and again", lambda size: "\u7684" * (size // 3)),
    "random": ("random characters of all planes", _random_characters),
}


def one_line(text: str, size: int) -> str:
    """Ordinary text of about so many characters without a single line break or separator."""
    line = text.replace(SEPARATOR, " ").replace("\n", " ")
    return (line * (size // len(line) + 1))[:size]
