"""Documents that are the same as an earlier one, or nearly.

MinHash signatures of shingles (runs of 5 words) estimate the Jaccard similarity of documents.
Candidates share a band of their signature; the native index compares them.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from groundup._native import DuplicateIndex, measure_documents

NUM_SHINGLE_WORDS = 5
SIGNATURE_SIZE = 128
MEASURED = np.dtype(
    [(name, np.int64) for name in ("characters", "spaces", "symbols")]
    + [("hash", np.uint64), ("signature", np.uint32, (SIGNATURE_SIZE,))]
)
"""A measured document, as the native core lays it out."""
ALIKE, SAME = 1, 2

_LEAST_RECALL = 0.9


class Duplicates:
    """Remembers documents, a few hundred bytes each, and finds those like them."""

    def __init__(self, threshold: float = 0.8) -> None:
        """`threshold` is the similarity of near duplicates; 0 finds only equal documents."""
        self.num_bands = num_bands_for(threshold)
        self._index = DuplicateIndex(self.num_bands, threshold)

    def add(self, measured: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
        """ALIKE or SAME for documents like earlier ones; 0 for the others, which are remembered."""
        found = self._index.add(np.ascontiguousarray(measured).data)
        return np.frombuffer(memoryview(found), np.int64)


def measure(
    data: bytes | memoryview, bounds: npt.NDArray[np.int64], num_threads: int
) -> npt.NDArray[np.void]:
    """Counts, hash and signature of each document, as MEASURED."""
    found: Any = measure_documents(data, bounds.data, NUM_SHINGLE_WORDS, num_threads)
    return np.frombuffer(memoryview(found), MEASURED)


def num_bands_for(threshold: float) -> int:
    """As few bands of the signature as find nine in ten of the pairs just at the threshold."""
    if not threshold:
        return 0
    for num_bands in (8, 16, 32, 64):
        # The probability that such a pair shares a band.
        if 1 - (1 - threshold ** (SIGNATURE_SIZE // num_bands)) ** num_bands >= _LEAST_RECALL:
            return num_bands
    return SIGNATURE_SIZE
