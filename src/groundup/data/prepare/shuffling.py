"""Documents in another order, or mixed from several texts, in memory that does not grow with them.

Each document gets a random number of its own and its ids go to a file of those with the same first
bits; then one file after the other is sorted. The order is that of the numbers, whatever the files
are.
"""

import contextlib
import logging
import mmap
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from groundup.data.counter_random import check_seed, random_uint64
from groundup.data.prepare.encoded_documents import EncodedDocuments
from groundup.errors import ConfigError, DataError
from groundup.text_files import Source

_log = logging.getLogger(__name__)

_ORDER, _CHOICE = 16, 17  # Streams of the seed.
_BUCKET_BYTES = 64 << 20
_MOST_BUCKETS = 128
_BATCH_IDS = 4 << 20
_HASHES, _COUNTS = ("key", "hash"), ("number", "begin", "num_ids", "length", "text")
_RECORD = np.dtype(
    [*((name, np.uint64) for name in _HASHES), *((name, np.int64) for name in _COUNTS)]
)


@dataclass(frozen=True)
class Mix:
    """Texts with weights, and the sources of each."""

    weights: Mapping[str, float]
    sources: Sequence[Sequence[Source]]
    taken: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Of each text, once it has been read: its bytes, and the fraction of it that was taken."""

    def __post_init__(self) -> None:
        names: dict[Source, str] = {}
        for name, text in zip(self.weights, self.sources, strict=True):
            for source in text:
                if source in names:
                    raise ConfigError(f"--mix: {source} is in {names[source]} and in {name}")
                names[source] = name

    def texts_of(self, sources: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The number of the text that each source belongs to."""
        ends = np.cumsum([len(text) for text in self.sources])
        return np.searchsorted(ends, sources, side="right")

    def resolve(self, num_bytes: npt.NDArray[np.int64]) -> list[float]:
        """How much of each text makes the largest mix in which none comes twice, by bytes."""
        pairs = list(zip(self.weights.values(), num_bytes.tolist(), strict=True))
        whole = min(size / weight for weight, size in pairs if weight)
        return [min(1.0, weight * whole / size) if size else 0.0 for weight, size in pairs]

    def note_taken(
        self, num_bytes: npt.NDArray[np.int64], taken_bytes: npt.NDArray[np.int64]
    ) -> None:
        """Of each text, how many bytes there are, and how many whole documents came to."""
        for name, size, taken in zip(self.weights, num_bytes, taken_bytes, strict=True):
            self.taken[name] = int(size), float(taken / size) if size else 0.0
            if self.weights[name] and not taken:
                _log.warning(
                    "--mix takes whole documents, and none of %s: it has too few; cut its "
                    "documents smaller, or mix prepared shards with data.mix",
                    name,
                )


class DocumentShuffle:
    """Takes all documents, then gives them back; files without names hold them in between."""

    def __init__(
        self, folder: Path, seed: int, num_bytes: int | None, dtype: str, mix: Mix | None
    ) -> None:
        """Begin to take documents.

        folder: where there is room for the ids.
        seed: of the order and the choice.
        num_bytes: about how much text there will be, if that is known.
        dtype: of the ids.
        mix: the texts that the sources belong to; None takes all.
        """
        self._seed = check_seed(seed)
        wanted = _MOST_BUCKETS if num_bytes is None else -(-num_bytes // _BUCKET_BYTES)
        self._bits = max(1, (min(max(wanted, 1), _MOST_BUCKETS) - 1).bit_length())
        self._folder = folder
        self._dtype = np.dtype(dtype)
        self._mix = mix
        self._files = contextlib.ExitStack()
        self._buckets: dict[int, tuple[IO[bytes], IO[bytes]]] = {}
        self._num_documents = self._num_sources = 0
        self._begun: npt.NDArray[np.void] | None = None
        self._text_bytes = np.zeros(1 if mix is None else len(mix.weights), np.int64)

    def close(self) -> None:
        """Give the room on disk back."""
        self._files.close()

    def add(self, item: Any) -> None:
        """Take documents, as `EncodedDocuments` in the order of their sources."""
        rows = np.arange(len(item.hashes))
        sources = np.searchsorted([row for row, _ in item.ends], rows, side="right")
        sources += self._num_sources
        self._num_sources += len(item.ends)
        records = np.zeros(len(rows), _RECORD)
        records["number"] = rows + self._num_documents
        records["key"] = random_uint64(self._seed, _ORDER, records["number"].astype(np.uint64))
        records["hash"], records["length"] = item.hashes, item.lengths
        records["num_ids"] = np.diff(item.offsets)
        records["text"] = 0 if self._mix is None else self._mix.texts_of(sources)
        np.add.at(self._text_bytes, records["text"], records["length"])
        try:
            self._write(item, records)
        except OSError as error:
            raise DataError(
                f"the documents to be shuffled do not fit beside the shards in {self._folder} "
                f"({error.strerror}); name an --out on a larger disk"
            ) from error
        self._num_documents += len(rows) if item.is_whole else 0

    def documents(self) -> Iterator[EncodedDocuments]:
        """Yield all documents in random order, of a mix as many as it takes."""
        fractions = None if self._mix is None else self._mix.resolve(self._text_bytes)
        taken_bytes = np.zeros_like(self._text_bytes)
        for bucket in sorted(self._buckets):
            file, index = self._buckets.pop(bucket)
            file.flush()
            index.seek(0)
            records = np.frombuffer(index.read(), _RECORD)
            records = records[np.argsort(records["key"], kind="stable")]
            if fractions is not None:
                records = records[self._choose(records, fractions)]
            np.add.at(taken_bytes, records["text"], records["length"])
            if records["num_ids"].any():
                ids = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                yield from _cut(np.frombuffer(ids, self._dtype), records)
            file.close()
            index.close()
        if self._mix is not None:
            self._mix.note_taken(self._text_bytes, taken_bytes)

    def _write(self, item: EncodedDocuments, records: npt.NDArray[np.void]) -> None:
        buckets = (records["key"] >> np.uint64(64 - self._bits)).astype(np.int64)
        if len(records) and not (item.is_whole and self._begun is None):
            # A document in parts: each goes behind the one before.
            file, index = self._open(int(buckets[0]))
            if self._begun is None:
                records["begin"] = file.tell() // self._dtype.itemsize
                self._begun = records
            else:
                self._begun["num_ids"] += records["num_ids"]
                self._begun["length"] += records["length"]
            file.write(item.ids.data)
            if item.is_whole:
                index.write(self._begun.tobytes())
                self._begun = None
            return
        offsets = item.offsets.tolist()
        for bucket in np.unique(buckets).tolist():
            file, index = self._open(bucket)
            chosen = np.flatnonzero(buckets == bucket)
            counts = records["num_ids"][chosen]
            records["begin"][chosen] = file.tell() // self._dtype.itemsize
            records["begin"][chosen] += np.cumsum(counts) - counts
            for row in chosen.tolist():
                file.write(item.ids[offsets[row] : offsets[row + 1]].data)
            index.write(records[chosen].tobytes())

    def _choose(
        self, records: npt.NDArray[np.void], fractions: Sequence[float]
    ) -> npt.NDArray[np.bool_]:
        numbers = records["number"].astype(np.uint64)
        chance = random_uint64(self._seed, _CHOICE, numbers).astype(np.float64) / 2.0**64
        chosen: npt.NDArray[np.bool_] = chance < np.array(fractions)[records["text"]]
        return chosen

    def _open(self, bucket: int) -> tuple[IO[bytes], IO[bytes]]:
        if bucket not in self._buckets:
            # Without a name: a process that is killed leaves nothing behind.
            file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
            index = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
            self._buckets[bucket] = file, index
            self._files.callback(file.close)
            self._files.callback(index.close)
        return self._buckets[bucket]


def _cut(ids: npt.NDArray[Any], records: npt.NDArray[np.void]) -> Iterator[EncodedDocuments]:
    """Documents in the order of the records; a long one stays where it is, others are copied."""
    begin = 0
    while begin < len(records):
        ends = np.cumsum(records["num_ids"][begin:])
        end = begin + max(1, int(np.searchsorted(ends, _BATCH_IDS, side="right")))
        part = records[begin:end]
        places = zip(part["begin"].tolist(), part["num_ids"].tolist(), strict=True)
        pieces = [ids[at : at + count] for at, count in places]
        offsets = np.concatenate([[0], np.cumsum(part["num_ids"])])
        yield EncodedDocuments(
            pieces[0] if len(pieces) == 1 else np.concatenate(pieces),
            offsets,
            np.ascontiguousarray(part["hash"]),
            np.ascontiguousarray(part["length"]),
        )
        begin = end
