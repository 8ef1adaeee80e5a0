"""Documents in groups of a good size, measured: all that can be found out about each by itself.

It is done by the threads of this process, or for a part of the text wherever that is asked for.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from groundup._native import measure_documents
from groundup.data.clean.output import encode_line
from groundup.data.clean.overlap import Overlap, excerpt
from groundup.data.clean.settings import MEASURED, NUM_SHINGLE_WORDS, Measured
from groundup.text_files import DocumentBatch, Source, TextPart, read_sources

_GROUP_BYTES = 4 << 20
_MOST_BATCHES = 4096

Bounds = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Group:
    """Documents in one buffer, with the rows at which each source begins or goes on."""

    data: bytes | memoryview
    bounds: Bounds
    sources: list[tuple[int, Source]]

    @property
    def lengths(self) -> Bounds:
        """The bytes of each document."""
        lengths: Bounds = self.bounds[:, 1] - self.bounds[:, 0]
        return lengths

    def lines(self, rows: Sequence[int], field: str) -> bytes:
        """Documents as JSON lines."""
        return b"".join([encode_line(self._view(row), field) for row in rows])

    def excerpt(self, row: int, field: str) -> str:
        """The beginning of a document."""
        del field
        return excerpt(self._view(row))

    def note_overlap(self, overlap: Overlap, rows: npt.NDArray[np.int64]) -> None:
        """Tell which passages of the validation text are in some documents."""
        overlap.note(overlap.find(self.data, self.bounds[rows])[1])

    def _view(self, row: int) -> memoryview:
        begin, end = self.bounds[row].tolist()
        return memoryview(self.data)[begin:end]


@dataclass(frozen=True)
class EncodedGroup(Group):
    """The same with JSON lines instead of documents, and the passages that each has."""

    text_bytes: Bounds
    passages: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None

    @property
    def lengths(self) -> Bounds:
        return self.text_bytes

    def lines(self, rows: Sequence[int], field: str) -> bytes:
        del field
        return b"".join([self._view(row) for row in rows])

    def excerpt(self, row: int, field: str) -> str:
        return excerpt(json.loads(bytes(self._view(row)))[field].encode())

    def note_overlap(self, overlap: Overlap, rows: npt.NDArray[np.int64]) -> None:
        if self.passages is not None:
            found, places = self.passages
            overlap.note(places[np.isin(found, rows)])


@dataclass(frozen=True)
class PartMeasuring:
    """Reads and measures a part of a corpus, and makes its lines, the dearest step but one."""

    code_points: npt.NDArray[np.int64]
    overlap: Overlap | None
    reading: Mapping[str, Any]

    def __call__(self, part: TextPart) -> Iterator[tuple[EncodedGroup, Measured]]:
        """Yield groups, in order, with what was measured."""
        part.check()
        for group in group_batches(read_sources(part.sources, part=part, **self.reading)):
            rows = range(len(group.bounds))
            lines = [group.lines([row], self.reading["field"]) for row in rows]
            ends = np.cumsum([len(line) for line in lines], dtype=np.int64)
            begins = np.concatenate([[0], ends[:-1]]) if lines else ends
            passages = None
            if self.overlap is not None:
                passages = self.overlap.find(group.data, group.bounds)
            yield (
                EncodedGroup(
                    b"".join(lines),
                    np.stack([begins, ends], axis=1),
                    group.sources,
                    group.lengths,
                    passages,
                ),
                measure(group, self.code_points, num_threads=1),
            )


def measure(group: Group, code_points: npt.NDArray[np.int64], num_threads: int) -> Measured:
    """What judges need of each document.

    group: the documents.
    code_points: of the letters of the script that is asked for.
    num_threads: how many measure.
    """
    measured = measure_documents(
        group.data, group.bounds.data, code_points.data, NUM_SHINGLE_WORDS, num_threads
    )
    return np.frombuffer(memoryview(measured), MEASURED)


def group_batches(batches: Iterator[tuple[Source, DocumentBatch]]) -> Iterator[Group]:
    """Small batches put together: a call for each tiny file would cost more than its text."""
    waiting: list[tuple[Source, DocumentBatch]] = []
    num_bytes = 0
    for source, batch in batches:
        waiting.append((source, batch))
        num_bytes += len(batch.data)
        if num_bytes >= _GROUP_BYTES or len(waiting) >= _MOST_BATCHES:
            yield _join(waiting)
            waiting, num_bytes = [], 0
    if waiting:
        yield _join(waiting)


def _join(batches: list[tuple[Source, DocumentBatch]]) -> Group:
    if len(batches) == 1:
        source, batch = batches[0]
        return Group(batch.data, np.ascontiguousarray(batch.bounds), [(0, source)])
    rows = np.cumsum([0, *(len(batch.bounds) for _, batch in batches)]).tolist()
    begins = np.cumsum([0, *(len(batch.data) for _, batch in batches)]).tolist()
    bounds = [batch.bounds + at for (_, batch), at in zip(batches, begins, strict=False)]
    sources = [(row, source) for row, (source, _) in zip(rows, batches, strict=False)]
    return Group(b"".join(batch.data for _, batch in batches), np.concatenate(bounds), sources)
