"""Text that people wrote, to hold what a model writes against: its words, and some documents."""

import os
from dataclasses import dataclass
from pathlib import Path

from groundup.errors import DataError
from groundup.experiments.temperatures.text_diversity import words_of
from groundup.text_files import read_document_batches


@dataclass(frozen=True)
class ReferenceText:
    """Every word of some files, and their first documents."""

    name: str
    words: frozenset[str]
    documents: tuple[str, ...]


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
    return ReferenceText(Path(path).name, frozenset(words), tuple(documents))
