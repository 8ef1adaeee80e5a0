"""Validation text that also stands in training: passages of 13 words that both have."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from groundup._native import hash_shingles
from groundup.data.prepare.sources import path_text
from groundup.text_files import DocumentBatch, Source

NUM_PASSAGE_WORDS = 13
"""So long a run of words is hardly written twice by chance."""

_MOST_EXAMPLES = 10
_EXCERPT_CHARACTERS = 100
_BITMAP_BITS = 24


class Overlap:
    """The passages of the validation text, and which of them training text has had so far."""

    def __init__(self, batches: Iterable[tuple[Source, DocumentBatch]]) -> None:
        self._names: list[tuple[Source, str]] = []
        hashes, counts = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        for source, batch in batches:
            found, lengths = _passages(batch.data, batch.bounds)
            hashes.append(found)
            counts.append(lengths)
            view = memoryview(batch.data)
            self._names += [(source, excerpt(view[a:b])) for a, b in batch.bounds.tolist()]
        self._counts = np.concatenate(counts)
        self._passages, self._places = np.unique(np.concatenate(hashes), return_inverse=True)
        self._is_found = np.zeros(len(self._passages), np.bool_)
        # Most passages of training text are none of these: a bit says so at once.
        self._is_possible = np.zeros(1 << _BITMAP_BITS, np.bool_)
        self._is_possible[_bits(self._passages)] = True

    def find(
        self, data: bytes | memoryview, bounds: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Which passages training documents have: the rows of the documents, and the passages."""
        nothing = np.empty(0, np.int64)
        if not len(self._passages) or not len(bounds):
            return nothing, nothing
        hashes, counts = _passages(data, bounds)
        is_possible = self._is_possible[_bits(hashes)]
        hashes = hashes[is_possible]
        rows = np.repeat(np.arange(len(bounds)), counts)[is_possible]
        at = np.minimum(np.searchsorted(self._passages, hashes), len(self._passages) - 1)
        is_found = self._passages[at] == hashes
        return rows[is_found], at[is_found]

    def note(self, passages: npt.NDArray[np.int64]) -> None:
        """Training text has these passages."""
        self._is_found[passages] = True

    def report(self) -> dict[str, Any]:
        """How much of the validation text training text has, with the documents that have most."""
        begins = np.cumsum(self._counts) - self._counts
        found = self._is_found[self._places].astype(np.int64)
        sums = np.add.reduceat(found, begins) if len(begins) else np.empty(0, np.int64)
        fractions = sums / np.maximum(self._counts, 1)
        is_half = fractions >= 0.5
        order = np.argsort(-fractions, kind="stable")[:_MOST_EXAMPLES]
        examples = [
            {
                "source": path_text(self._names[row][0]),
                "fraction": round(float(fractions[row]), 4),
                "text": self._names[row][1],
            }
            for row in order.tolist()
            if fractions[row] > 0
        ]
        return {
            "documents": len(self._counts),
            "documents_in_training": int(np.count_nonzero(is_half)),
            "passages": len(found),
            "passages_in_training": int(found.sum()),
            "passage_words": NUM_PASSAGE_WORDS,
            "examples": examples,
        }


def excerpt(text: bytes | memoryview) -> str:
    """The beginning of a document in a line."""
    beginning = str(text[: 8 * _EXCERPT_CHARACTERS], "utf-8", "ignore")
    return " ".join(beginning.split())[:_EXCERPT_CHARACTERS]


def _passages(
    data: bytes | memoryview, bounds: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    hashes, counts = hash_shingles(data, np.ascontiguousarray(bounds).data, NUM_PASSAGE_WORDS)
    return np.frombuffer(memoryview(hashes), np.uint64), np.frombuffer(memoryview(counts), np.int64)


def _bits(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    bits: npt.NDArray[np.uint64] = hashes >> np.uint64(64 - _BITMAP_BITS)
    return bits
