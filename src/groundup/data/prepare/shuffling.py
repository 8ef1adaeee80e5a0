"""Documents in another order, or mixed from several texts, in memory that does not grow with them.

Each document gets a random number of its own and goes to a file of those with the same first bits;
then one file after the other is sorted. The order is that of the numbers, whatever the files are.
"""

import contextlib
import mmap
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from groundup.data.counter_random import check_seed, random_uint64
from groundup.data.prepare.sources import SourceBatch
from groundup.errors import ConfigError, DataError
from groundup.text_files import Source

_ORDER, _CHOICE = 16, 17  # Streams of the seed.
_BUCKET_BYTES = 64 << 20
_MOST_BUCKETS = 128
_HASHES, _COUNTS = ("key", "hash"), ("number", "begin", "length", "text")
_RECORD = np.dtype(
    [*((name, np.uint64) for name in _HASHES), *((name, np.int64) for name in _COUNTS)]
)


@dataclass(frozen=True)
class Mix:
    """Texts with weights, and the sources of each."""

    weights: Mapping[str, float]
    sources: Sequence[Sequence[Source]]
    taken: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Of each text, once it has been read: its bytes, and the fraction of it that is taken."""

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
        fractions = [min(1.0, weight * whole / size) if size else 0.0 for weight, size in pairs]
        sizes = num_bytes.tolist()
        self.taken.update(zip(self.weights, zip(sizes, fractions, strict=True), strict=True))
        return fractions


def shuffle_documents(
    batches: Iterable[SourceBatch],
    folder: Path,
    seed: int,
    mix: Mix | None,
    note: Callable[[SourceBatch], None],
    batch_bytes: int,
    num_bytes: int | None,
) -> Iterator[SourceBatch]:
    """Yield all documents in random order, of a mix as many as it takes.

    batches: the documents in the order of their sources.
    folder: where there is room for the text.
    seed: of the order and the choice.
    mix: the texts that the sources belong to; None takes all.
    note: called with every batch that is read.
    batch_bytes: about how much text a batch holds.
    num_bytes: about how much text there is, if that is known.
    """
    num_texts = 1 if mix is None else len(mix.weights)
    with DocumentShuffle(folder, seed, num_bytes, num_texts) as shuffle:
        source = 0
        for batch in batches:
            rows = [row for row, _ in batch.ends]
            numbers = np.searchsorted(rows, np.arange(len(batch.hashes)), side="right") + source
            shuffle.add(batch, numbers * 0 if mix is None else mix.texts_of(numbers))
            source += len(rows)
            note(batch)
        fractions = None if mix is None else mix.resolve(shuffle.text_bytes)
        yield from shuffle.batches(batch_bytes, fractions)


class DocumentShuffle:
    """Takes all documents, then gives them back; files without names hold them in between."""

    def __init__(self, folder: Path, seed: int, num_bytes: int | None, num_texts: int = 1) -> None:
        """Begin to take documents.

        folder: where there is room for the text.
        seed: of the order.
        num_bytes: about how much text there will be, if that is known.
        num_texts: how many texts are mixed.
        """
        self._seed = check_seed(seed)
        wanted = _MOST_BUCKETS if num_bytes is None else -(-num_bytes // _BUCKET_BYTES)
        self._bits = max(1, (min(max(wanted, 1), _MOST_BUCKETS) - 1).bit_length())
        self._folder = folder
        self._files = contextlib.ExitStack()
        self._buckets: dict[int, tuple[IO[bytes], IO[bytes]]] = {}
        self._num_documents = 0
        self.text_bytes = np.zeros(num_texts, np.int64)
        """How much of each text has come."""

    def __enter__(self) -> "DocumentShuffle":
        return self

    def __exit__(self, *error: object) -> None:
        self._files.close()

    def add(self, batch: SourceBatch, texts: npt.NDArray[np.int64]) -> None:
        """Take the documents of a batch.

        batch: any documents.
        texts: the number of the text that each is from.
        """
        count = len(batch.hashes)
        records = np.zeros(count, _RECORD)
        records["number"] = np.arange(self._num_documents, self._num_documents + count)
        records["key"] = random_uint64(self._seed, _ORDER, records["number"].astype(np.uint64))
        records["hash"], records["text"] = batch.hashes, texts
        records["length"] = batch.bounds[:, 1] - batch.bounds[:, 0]
        np.add.at(self.text_bytes, texts, records["length"])
        self._num_documents += count
        view = memoryview(batch.data)
        buckets = (records["key"] >> np.uint64(64 - self._bits)).astype(np.int64)
        try:
            for bucket in np.unique(buckets).tolist():
                file, index = self._open(bucket)
                for row in np.flatnonzero(buckets == bucket).tolist():
                    begin, end = batch.bounds[row].tolist()
                    records["begin"][row] = file.tell()
                    file.write(view[begin:end])
                index.write(records[buckets == bucket].tobytes())
        except OSError as error:
            raise DataError(
                f"the text to be shuffled does not fit beside the shards in {self._folder} "
                f"({error.strerror}); name an --out on a larger disk"
            ) from error

    def batches(
        self, batch_bytes: int, fractions: Sequence[float] | None = None
    ) -> Iterator[SourceBatch]:
        """Yield the documents in their new order.

        batch_bytes: about how much text a batch holds.
        fractions: of each text, how much of it to give; all if not given.
        """
        done = 0
        for bucket in sorted(self._buckets):
            file, index = self._buckets.pop(bucket)
            file.flush()
            index.seek(0)
            records = np.frombuffer(index.read(), _RECORD)
            records = records[np.argsort(records["key"], kind="stable")]
            if fractions is not None:
                records = records[self._choose(records, fractions)]
            if len(records):
                text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                for batch in _cut(memoryview(text), records, batch_bytes):
                    done += len(batch.data)
                    yield SourceBatch(batch.data, batch.bounds, batch.hashes, done)
            file.close()
            index.close()

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


def _cut(
    text: memoryview, records: npt.NDArray[np.void], batch_bytes: int
) -> Iterator[SourceBatch]:
    """Documents in the order of the records; a long one stays where it is, others are copied."""
    begin = 0
    while begin < len(records):
        ends = np.cumsum(records["length"][begin:])
        end = begin + max(1, int(np.searchsorted(ends, batch_bytes, side="right")))
        part = records[begin:end]
        places = zip(part["begin"].tolist(), part["length"].tolist(), strict=True)
        pieces = [text[at : at + length] for at, length in places]
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        stops = np.cumsum(part["length"])
        bounds = np.stack([stops - part["length"], stops], axis=1)
        yield SourceBatch(data, bounds, np.ascontiguousarray(part["hash"]), 0)
        begin = end
