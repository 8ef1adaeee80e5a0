"""Text that people wrote, to hold generated text against; and how varied the words of texts are.

A word is a run of letters, digits and the hyphens or apostrophes inside it, in lower case.
"""

import itertools
import os
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from groundup.data.shards import content_id, open_shards
from groundup.errors import DataError
from groundup.runs.folder import RunFolder
from groundup.text_files import read_document_batches
from groundup.tokenizer import Tokenizer

_MOST_IDS = 1 << 20
_WORD = re.compile(r"\w+(?:['’-]\w+)*")

Measured = dict[str, float | None]
"""Metrics of a text by name; one is None where the text is too short for it."""


class Reference(NamedTuple):
    """Every word of some files, if there are files, and documents of a kind with the model's."""

    words: frozenset[str] | None
    documents: tuple[str, ...]
    is_unseen: bool = False
    """Whether the documents are known to be none that the model learned from."""


def read_reference(path: str | os.PathLike[str], num_documents: int) -> Reference:
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
    return Reference(frozenset(words), tuple(documents))


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
    ids = split.read(0, min(_MOST_IDS, split.num_ids))
    ends = np.flatnonzero(ids == split.index.end.id)
    pieces = np.split(ids, ends)
    texts = (tokenizer.decode(piece[number > 0 :]) for number, piece in enumerate(pieces))
    return tuple(itertools.islice((text for text in texts if words_of(text)), num_documents))


def words_of(text: str, begin: int = 0) -> list[str]:
    """The words of a text that end after index `begin`: the first may have begun before it."""
    return [match[0].lower() for match in _WORD.finditer(text) if match.end() > begin]


def measure_words(texts: Sequence[Sequence[str]]) -> list[Measured]:
    """How varied the words of each of some texts are, alone and beside those of the others."""

    def n_grams(words: Sequence[str], length: int) -> list[tuple[str, ...]]:
        return [tuple(words[index : index + length]) for index in range(len(words) - length + 1)]

    holders = Counter(gram for words in texts for gram in set(n_grams(words, 3)))
    measured = []
    for words in texts:
        metrics: Measured = {}
        for length in (1, 2, 3):
            grams = n_grams(words, length)
            metrics[f"distinct_{length}_grams"] = len(set(grams)) / len(grams) if grams else None
        threes, fours = n_grams(words, 3), n_grams(words, 4)
        own = sum(holders[gram] == 1 for gram in threes)
        metrics["own_3_grams"] = own / len(threes) if threes and len(texts) > 1 else None
        metrics["repeated_4_grams"] = 1 - len(set(fours)) / len(fours) if fours else None
        measured.append(metrics)
    return measured
