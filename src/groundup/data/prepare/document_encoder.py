"""Batches of documents to ids, a document too long to be held twice in parts."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from groundup._native import WordCounter
from groundup.data.prepare.encoded_documents import EncodedDocuments
from groundup.data.prepare.journal import Position
from groundup.data.prepare.sources import SourceBatch, read_sources
from groundup.data.shards.index import PrepareSettings
from groundup.errors import DataError, TokenizerError
from groundup.text_files import OnError, TextPart
from groundup.text_files.opening import release_pages

if TYPE_CHECKING:
    from groundup.tokenizer import Tokenizer

# A document of more batches than this is encoded in parts.
_LONG_BATCHES = 4
# Regular expressions make an object of every pre-token.
_LONGEST_BY_REGEX = 256 << 20


@dataclass
class DocumentEncoder:
    """Encodes batches one after the other; before the first, it can be pickled."""

    tokenizer: "Tokenizer"
    end_id: int
    num_threads: int
    batch_bytes: int
    cutter: WordCounter | None = None

    def encode(self, batch: SourceBatch) -> Iterator[EncodedDocuments]:
        """The documents of a batch with their ids, a long one in several items."""
        bounds, hashes = batch.bounds, batch.hashes
        lengths = bounds[:, 1] - bounds[:, 0]
        long_rows = np.flatnonzero(lengths > _LONG_BATCHES * self.batch_bytes).tolist()
        begin = 0
        for row in long_rows:
            yield self._encode_rows(batch, lengths, begin, row)
            text = memoryview(batch.data)[bounds[row, 0] : bounds[row, 1]]
            yield from self._encode_long(text, hashes[row : row + 1])
            begin = row + 1
        # Only small batches hold ends of sources, and those have no long documents.
        rest = self._encode_rows(batch, lengths, begin, len(bounds))
        yield replace(rest, ends=batch.ends)

    def _encode_rows(
        self, batch: SourceBatch, lengths: npt.NDArray[np.int64], begin: int, end: int
    ) -> EncodedDocuments:
        ids, offsets = self._encode_documents(batch.data, batch.bounds[begin:end], self.end_id)
        return EncodedDocuments(ids, offsets, batch.hashes[begin:end], lengths[begin:end])

    def _encode_long(
        self, text: memoryview, hashes: npt.NDArray[np.uint64]
    ) -> Iterator[EncodedDocuments]:
        """A document too long to be held twice, in parts cut where no token can cross."""
        if not self.tokenizer.pattern.native and len(text) > _LONGEST_BY_REGEX:
            raise DataError(
                f"a document of {len(text):,} bytes is too long for the split pattern "
                f"{self.tokenizer.pattern.name}, which takes documents whole, of at most "
                f"{_LONGEST_BY_REGEX:,} bytes; put separators into it"
            )
        window = _LONG_BATCHES * self.batch_bytes
        while text:
            ids, used = self._encode_beginning(text[:window], is_whole=len(text) <= window)
            if not used:
                window *= 2
                continue
            is_whole = used == len(text)
            offsets = np.array([0, len(ids)], np.int64)
            lengths = np.array([used], np.int64)
            yield EncodedDocuments(ids, offsets, hashes, lengths, is_whole=is_whole)
            release_pages(text[:used])
            text, window = text[used:], _LONG_BATCHES * self.batch_bytes

    def _encode_beginning(
        self, text: memoryview, *, is_whole: bool
    ) -> tuple[npt.NDArray[Any], int]:
        """The ids of a beginning of `text` that holds whatever follows, and its length."""
        cut = self._find_cut(text)
        if cut == len(text) and not is_whole:
            # One pre-token, or almost: then it is cut inside.
            return self.tokenizer.encode_beginning(text)
        end_id = self.end_id if cut == len(text) else None
        bounds = np.array([[0, cut]], np.int64)
        ids, _ = self._encode_documents(text, bounds, end_id)
        return ids, cut

    def _encode_documents(
        self, data: bytes | memoryview, bounds: npt.NDArray[np.int64], end_id: int | None
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        try:
            return self.tokenizer.encode_documents(data, bounds, self.num_threads, end_id)
        except ValueError as error:
            # A pre-token that these merges cannot take in parts.
            raise TokenizerError(str(error)) from None

    def _find_cut(self, text: memoryview) -> int:
        if len(text) < 2 * self.batch_bytes or not self.tokenizer.pattern.native:
            return len(text)
        if self.cutter is None:
            special_tokens = [token.encode() for token in self.tokenizer.special_tokens]
            self.cutter = WordCounter(self.tokenizer.pattern.name, special_tokens, 1)
        return self.cutter.find_cut(text, self.batch_bytes)


@dataclass
class PartEncoder:
    """Reads and encodes a part of a corpus, wherever that is asked for."""

    encoder: DocumentEncoder
    settings: PrepareSettings
    on_error: OnError

    def __call__(self, part: TextPart) -> Iterator[tuple[int, EncodedDocuments]]:
        """Yield how much of the part has been read, and documents, in order."""
        part.check()
        batch_bytes = self.encoder.batch_bytes
        for batch in read_sources(
            list(part.sources), self.settings, batch_bytes, Position(), self.on_error, part
        ):
            assert isinstance(batch, SourceBatch)
            for documents in self.encoder.encode(batch):
                yield batch.done, documents
