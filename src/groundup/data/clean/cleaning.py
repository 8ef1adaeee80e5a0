"""Files to files: documents are measured by all cores, judged one after another, and the rest is
written. What is kept depends on the text, its order and the settings alone.

In memory stay a few hundred bytes of each document that is kept, whatever its length.
"""

import bisect
import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from groundup._native import DuplicateIndex, measure_documents
from groundup.data.clean.measuring import Group, PartMeasuring, group_batches, measure
from groundup.data.clean.output import check_output, open_output
from groundup.data.clean.overlap import Overlap
from groundup.data.clean.settings import NUM_SHINGLE_WORDS, CleanSettings, Measured, filters_of
from groundup.data.pipeline import WriteBehind, read_ahead
from groundup.data.prepare.sources import path_text
from groundup.errors import ConfigError, DataError
from groundup.files import write_json_atomic
from groundup.runtime import Engine, Progress, num_cores
from groundup.text_files import (
    END_OF_TEXT,
    OnError,
    Source,
    cut_into_parts,
    do_parts,
    expand_inputs,
    read_sources,
)
from groundup.text_files.documents import Errors
from groundup.text_files.inputs import check_not_input

_DEPTH = 2
_PART_BYTES = 32 << 20
_MOST_EXAMPLES = 3
_MATCH = np.dtype([("number", np.int64), ("is_same", np.int64), ("similarity", np.float64)])
_SAME, _ALIKE = "same", "near duplicates"


@dataclass
class Removed:
    """The documents that one reason left out."""

    rule: str
    num_documents: int = 0
    num_bytes: int = 0
    examples: list[dict[str, Any]] = dataclasses.field(default_factory=list)


@dataclass(frozen=True)
class CleanSummary:
    """What was read, left out by each reason, and kept."""

    num_documents: int
    num_bytes: int
    kept_documents: int
    kept_bytes: int
    removed: dict[str, Removed]
    recall: float | None
    """Of near duplicates just at the threshold, the fraction that is found."""
    validation: dict[str, Any] | None
    seconds: float


def clean(
    inputs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None,
    settings: CleanSettings | None = None,
    *,
    validation: Sequence[str | os.PathLike[str]] = (),
    field: str = "text",
    column: str = "text",
    errors: Errors = "strict",
    encoding: str | None = None,
    on_error: OnError = "stop",
    num_threads: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    engine: Engine | None = None,
    part_bytes: int = _PART_BYTES,
) -> CleanSummary:
    """Write the documents worth keeping as JSON lines, and a report beside them.

    inputs: files, folders, globs, or "-" for standard input.
    out: the file of JSON lines; None counts only. The report lies at `report_path`.
    settings: what is left out.
    validation: text to look for in what is kept.
    field, column, errors, encoding, on_error: how the text is read, as for `prepare`.
    num_threads: how many measure documents; the result does not depend on it.
    overwrite: replace files that are there.
    progress: called with the bytes read so far and their total, or None where that is unknown.
    engine: reads and measures parts of the text elsewhere; what is written is the same.
    part_bytes: about how much text such a part has.
    """
    started = time.perf_counter()
    settings = settings or CleanSettings()
    if num_threads is not None and num_threads < 1:
        raise ConfigError(f"--num-threads must be at least 1, got {num_threads}")
    reading: dict[str, Any] = {"field": field, "column": column, "errors": errors}
    reading |= {"encoding": encoding, "on_error": on_error}
    sources = expand_inputs(inputs, on_error)
    target = None if out is None else Path(out)
    if target is not None:
        _check_target(target, sources, overwrite=overwrite)
    overlap = None
    if validation:
        overlap = Overlap(read_sources(expand_inputs(validation, on_error), **reading))
    work = _Cleaning(settings, overlap, field)
    measured: Iterator[tuple[Group, Measured]]
    with contextlib.ExitStack() as stack:
        if engine is None:
            batches = read_sources(sources, progress=progress, **reading)
            groups = stack.enter_context(read_ahead(group_batches(batches), _DEPTH))
            threads, points = num_threads or num_cores(), settings.code_points()
            measured = ((group, measure(group, points, threads)) for group in groups)
        else:
            measuring = PartMeasuring(settings.code_points(), overlap, reading)
            parts = cut_into_parts(
                sources, part_bytes, separators=[END_OF_TEXT], encoding=encoding, on_error=on_error
            )
            measured = do_parts(engine, measuring, parts, progress)
        file = stack.enter_context(open_output(target)) if target else None
        work.run(measured, file)
        summary = work.summary(time.perf_counter() - started)
        if not summary.kept_documents and target is not None:
            raise DataError(_nothing_left(summary))
    if target is not None:
        write_json_atomic(report_path(target), report_of(summary, settings, sources))
    return summary


def report_path(out: Path) -> Path:
    """Where the report of an output lies."""
    return out.with_name(out.name + ".report.json")


def report_of(
    summary: CleanSummary, settings: CleanSettings, sources: Sequence[Source]
) -> dict[str, Any]:
    """The report as JSON holds it; the same text and settings give the same one.

    summary: what was done.
    settings: what was asked for.
    sources: what was read.
    """
    return {
        "format": "groundup-clean-report",
        "version": 1,
        "sources": [path_text(source) for source in sources[:100]],
        "num_sources": len(sources),
        "settings": settings.model_dump(),
        "read": {"documents": summary.num_documents, "bytes": summary.num_bytes},
        "kept": {"documents": summary.kept_documents, "bytes": summary.kept_bytes},
        "removed": {name: dataclasses.asdict(item) for name, item in summary.removed.items()},
        "recall_at_threshold": summary.recall,
        "validation": summary.validation,
    }


class DuplicateCounter:
    """Counts documents that are the same as an earlier one, or nearly, and keeps nothing else."""

    def __init__(self) -> None:
        settings = CleanSettings()
        self._index = DuplicateIndex(settings.num_bands, settings.near_duplicates)
        self._num_documents = 0
        self.num_same = self.num_alike = 0

    def add(self, data: bytes | memoryview, bounds: npt.NDArray[np.int64]) -> None:
        """The documents of a buffer, after all that came before."""
        none = np.empty((0, 2), np.int64)
        measured = measure_documents(data, bounds.data, none.data, NUM_SHINGLE_WORDS, num_cores())
        numbers = np.arange(len(bounds)) + self._num_documents
        matches = np.frombuffer(memoryview(self._index.add(measured, numbers.data)), _MATCH)
        found = matches[matches["number"] >= 0]
        self._num_documents += len(bounds)
        self.num_same += int((found["is_same"] == 1).sum())
        self.num_alike += int((found["is_same"] == 0).sum())


class _Cleaning:
    """One run over all documents, which are numbered as they come."""

    def __init__(self, settings: CleanSettings, overlap: Overlap | None, field: str) -> None:
        self._settings = settings
        self._filters = filters_of(settings)
        self._index = DuplicateIndex(settings.num_bands, settings.near_duplicates)
        self._overlap = overlap
        self._field = field
        self._removed = {filter.name: Removed(filter.rule) for filter in self._filters}
        self._removed[_SAME] = Removed("the same as an earlier document")
        if settings.num_bands:
            rule = f"at least {settings.near_duplicates:.0%} like an earlier document"
            self._removed[_ALIKE] = Removed(rule)
        self._first_numbers: list[int] = []
        self._sources: list[Source] = []
        self._num_documents = self._num_bytes = self._kept_documents = self._kept_bytes = 0

    def run(self, items: Iterator[tuple[Group, Measured]], file: IO[bytes] | None) -> None:
        def write(item: tuple[Group, npt.NDArray[np.int64]]) -> None:
            group, rows = item
            assert file is not None
            file.write(group.lines(rows.tolist(), self._field))

        behind = WriteBehind(write, _DEPTH)
        try:
            for group, measured in items:
                kept = self._judge(group, measured)
                if file is not None and len(kept):
                    behind.put((group, kept))
            behind.finish()
        finally:
            behind.close()

    def summary(self, seconds: float) -> CleanSummary:
        settings = self._settings
        recall = settings.recall(settings.near_duplicates, settings.num_bands)
        return CleanSummary(
            self._num_documents,
            self._num_bytes,
            self._kept_documents,
            self._kept_bytes,
            self._removed,
            round(recall, 4) if settings.num_bands else None,
            None if self._overlap is None else self._overlap.report(),
            seconds,
        )

    def _judge(self, group: Group, measured: Measured) -> npt.NDArray[np.int64]:
        """The rows to keep."""
        for row, source in group.sources:
            if not self._sources or self._sources[-1] != source:
                self._first_numbers.append(self._num_documents + row)
                self._sources.append(source)
        lengths = group.lengths
        rows = self._apply_filters(group, measured, lengths)
        rows = self._drop_duplicates(group, measured, lengths, rows)
        if self._overlap is not None:
            group.note_overlap(self._overlap, rows)
        self._num_documents += len(lengths)
        self._num_bytes += int(lengths.sum())
        self._kept_documents += len(rows)
        self._kept_bytes += int(lengths[rows].sum())
        return rows

    def _apply_filters(
        self, group: Group, measured: Measured, lengths: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        rows = np.arange(len(measured))
        for filter in self._filters:
            values = filter.value(measured[rows])
            is_bad = filter.is_bad(values)
            bad = rows[is_bad]
            details = [{"value": round(float(value), 4)} for value in values[is_bad][:3].tolist()]
            self._remove(filter.name, group, bad, lengths, details)
            rows = rows[~is_bad]
        return rows

    def _drop_duplicates(
        self,
        group: Group,
        measured: Measured,
        lengths: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        numbers = rows + self._num_documents
        found = self._index.add(np.ascontiguousarray(measured[rows]).data, numbers.data)
        matches = np.frombuffer(memoryview(found), _MATCH)
        is_there = matches["number"] >= 0
        for name, is_same in ((_SAME, 1), (_ALIKE, 0)):
            chosen = is_there & (matches["is_same"] == is_same)
            details = [
                {
                    "like": self._locate(int(match["number"])),
                    "similarity": round(float(match["similarity"]), 4),
                }
                for match in matches[chosen][:_MOST_EXAMPLES]
            ]
            if chosen.any():
                self._remove(name, group, rows[chosen], lengths, details)
        return rows[~is_there]

    def _remove(
        self,
        name: str,
        group: Group,
        rows: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        details: list[dict[str, Any]],
    ) -> None:
        removed = self._removed[name]
        removed.num_documents += len(rows)
        removed.num_bytes += int(lengths[rows].sum())
        room = _MOST_EXAMPLES - len(removed.examples)
        for row, detail in zip(rows[:room].tolist(), details, strict=False):
            place = self._locate(self._num_documents + row)
            text = group.excerpt(row, self._field)
            removed.examples.append({**place, **detail, "text": text})

    def _locate(self, number: int) -> dict[str, Any]:
        """The source of a document, and its number in it, from 1."""
        at = bisect.bisect_right(self._first_numbers, number) - 1
        source = path_text(self._sources[at])
        return {"source": source, "document": number - self._first_numbers[at] + 1}


def _check_target(out: Path, sources: Sequence[Source], *, overwrite: bool) -> None:
    check_output(out)
    check_not_input(out, sources)
    for path in (out, report_path(out)):
        if path.exists() and not overwrite:
            raise ConfigError(f"{path} exists; name another file, or replace it with --overwrite")


def _nothing_left(summary: CleanSummary) -> str:
    if not summary.num_documents:
        return "the inputs hold no documents"
    name, removed = max(summary.removed.items(), key=lambda item: item[1].num_documents)
    return (
        f"no document is left of {summary.num_documents:,}, {removed.num_documents:,} of them for "
        f"'{name}' ({removed.rule}); look at --dry-run and loosen the settings"
    )
