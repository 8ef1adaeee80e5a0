"""Text that people wrote, to hold generated text against; and how varied the words of texts are.

A word is a run of letters, digits and the hyphens or apostrophes inside it, in lower case.
"""

import itertools
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from groundup.data.shards import Shards, content_id, open_shards
from groundup.errors import DataError
from groundup.runs.folder import RunFolder
from groundup.text_files import read_document_batches
from groundup.tokenizer import Tokenizer

_IDS_AT_ONCE = 1 << 20
_WORD = re.compile(r"\w+(?:['’-]\w+)*")

NGram = tuple[str, ...]


@dataclass(frozen=True)
class ReferenceText:
    """Every word of some files, if there are files, and documents of a kind with the model's."""

    words: frozenset[str] | None
    documents: tuple[str, ...]
    is_unseen: bool = False
    """Whether the documents are known to be none that the model learned from."""


def read_reference(path: str | os.PathLike[str], num_documents: int) -> ReferenceText:
    """Read files of any form that data is prepared from; one without words is a DataError."""
    words: set[str] = set()
    documents: list[str] = []
    for batch in read_document_batches([path]):
        for begin, end in batch.bounds.tolist():
            document = bytes(batch.data[begin:end]).decode("utf-8")
            found = words_of(document)
            words.update(found)
            if found and len(documents) < num_documents:
                documents.append(document)
    if not words:
        raise DataError(f"there are no words in {path}: name a file with text for a reference")
    return ReferenceText(frozenset(words), tuple(documents))


def unseen_documents(run: RunFolder, tokenizer: Tokenizer, num_documents: int) -> tuple[str, ...]:
    """The first documents with words of the validation split beside what a run learned from; none
    where there is no such split, or what it learned from is no longer there as it was."""
    try:
        split = open_shards(run.read_config().data.shards, "validation", tokenizer)
    except DataError:
        return ()
    learned_from = run.read_environment().get("data")
    if not isinstance(learned_from, dict) or learned_from.get("content") != content_id(split.index):
        return ()
    texts = (tokenizer.decode(ids) for ids in _documents(split))
    return tuple(itertools.islice((text for text in texts if words_of(text)), num_documents))


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


def _documents(split: Shards) -> Iterator[list[int]]:
    """The ids of one document after another, without the end's."""
    document: list[int] = []
    for begin in range(0, split.num_ids, _IDS_AT_ONCE):
        ids = split.read(begin, min(begin + _IDS_AT_ONCE, split.num_ids))
        *whole, rest = np.split(ids, np.flatnonzero(ids == split.index.end.id) + 1)
        for part in whole:
            yield document + part[:-1].tolist()
            document = []
        document += rest.tolist()
    if document:
        yield document
