"""Text that people wrote, to hold what a model writes against: its words, and some documents."""

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from groundup.data.shards import Shards, content_id, open_shards
from groundup.errors import DataError
from groundup.experiments.text_diversity import words_of
from groundup.runs.folder import RunFolder
from groundup.text_files import read_document_batches
from groundup.tokenizer import Tokenizer

_IDS_AT_ONCE = 1 << 20


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
