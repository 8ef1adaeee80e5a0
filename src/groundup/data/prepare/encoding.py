"""Encode parts of a corpus, in this process or in an engine's workers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from groundup._native import WordCounter
from groundup.data.pipeline import read_ahead
from groundup.data.shards.index import hash_each
from groundup.errors import TokenizerError
from groundup.text_files import DocumentBatch, Part, Reading, Source, read
from groundup.tokenizer.training import cut_finder

if TYPE_CHECKING:
    from groundup.tokenizer import Tokenizer

_DEPTH = 2


@dataclass(frozen=True)
class EncodedDocuments:
    """Document i is ids[offsets[i]:offsets[i + 1]] and had lengths[i] bytes."""

    ids: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.int64]
    ends: Sequence[tuple[int, Source, str | None]]
    """See `DocumentBatch.ends`."""
    read_bytes: int
    continues: bool
    """Whether this is a piece of a single document that continues in the next batch."""


@dataclass(frozen=True)
class PartEncoder:
    """Reads and encodes a part of a corpus. Picklable."""

    tokenizer: "Tokenizer"
    end_id: int
    reading: Reading
    num_threads: int
    batch_bytes: int

    def __call__(self, part: Part) -> Iterator[EncodedDocuments]:
        """Yield the documents of a part in order."""
        # A source ends in the part that holds its last byte.
        is_end = part.span is None or part.span[1] == part.sources[0].size
        special_tokens = [token.encode() for token in self.tokenizer.special_tokens]
        counter = WordCounter(self.tokenizer.pattern.splitter, special_tokens, 1)
        find_cut = cut_finder(counter, 0)
        batches = read(part, self.reading, batch_bytes=self.batch_bytes, find_cut=find_cut)
        with read_ahead(batches, _DEPTH) as ready:
            for batch in ready:
                yield self._encode(batch, is_end)

    def _encode(self, batch: DocumentBatch, is_end: bool) -> EncodedDocuments:
        bounds = batch.bounds
        end_id = None if batch.continues else self.end_id
        try:
            ids, offsets = self.tokenizer.encode_documents(
                batch.data, bounds, self.num_threads, end_id
            )
        except ValueError as error:
            # A long pre-token that these merges cannot encode in pieces.
            raise TokenizerError(str(error)) from None
        return EncodedDocuments(
            ids,
            offsets,
            hash_each(batch.data, bounds),
            bounds[:, 1] - bounds[:, 0],
            batch.ends if is_end else (),
            batch.read_bytes,
            batch.continues,
        )
