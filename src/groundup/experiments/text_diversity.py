"""How varied the words of texts are: which n-grams differ, which repeat, which are shared.

A word is a run of letters, digits and the hyphens or apostrophes inside it, in small letters.
"""

import re
from collections import Counter
from collections.abc import Collection, Sequence

_WORD = re.compile(r"\w+(?:['’-]\w+)*")

NGram = tuple[str, ...]


def words_of(text: str, begin: int = 0) -> list[str]:
    """The words of a text that end after index `begin`: the first may have begun before it."""
    return [match[0].lower() for match in _WORD.finditer(text) if match.end() > begin]


def n_grams(words: Sequence[str], length: int) -> list[NGram]:
    """Every `length` words that follow each other."""
    return [tuple(words[index : index + length]) for index in range(len(words) - length + 1)]


def distinct_fraction(words: Sequence[str], length: int) -> float | None:
    """Different n-grams as a fraction of all n-grams of a text; None if it is too short for one."""
    found = n_grams(words, length)
    return len(set(found)) / len(found) if found else None


def repeated_fraction(words: Sequence[str], length: int) -> float | None:
    """The fraction of a text's n-grams that stand in it before; None if it is too short for one."""
    distinct = distinct_fraction(words, length)
    return None if distinct is None else 1 - distinct


def own_fractions(texts: Sequence[Sequence[str]], length: int) -> list[float | None]:
    """For each text the fraction of its n-grams that no other of the texts holds.

    None for a text that is too short for one, and for a text without others.
    """
    grams = [n_grams(words, length) for words in texts]
    num_holders = Counter(gram for found in grams for gram in set(found))
    return [
        sum(num_holders[gram] == 1 for gram in found) / len(found)
        if found and len(texts) > 1
        else None
        for found in grams
    ]


def known_fraction(words: Sequence[str], known_words: Collection[str]) -> float | None:
    """The fraction of the words that are among the known ones; None if there are no words."""
    return sum(word in known_words for word in words) / len(words) if words else None
