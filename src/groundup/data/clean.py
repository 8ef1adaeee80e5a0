"""Text worth learning from: duplicates, near duplicates and poor documents are left out.

Documents are measured by all cores, or by an engine; one process judges them in order. What is kept
depends on the text, its order and the settings alone.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from groundup._native import hash_shingles
from groundup.config import Settings
from groundup.data.duplicates import ALIKE, SAME, Duplicates, measure
from groundup.data.pipeline import read_ahead
from groundup.errors import ConfigError, DataError
from groundup.files import atomic_path
from groundup.runtime import Engine, Progress, num_cores
from groundup.text_files import (
    Part,
    Reading,
    check_not_input,
    cut_into_parts,
    find_sources,
    read,
    run_parts,
)

_DEPTH = 2
_EXCERPT_CHARACTERS = 60
# So long a run of words is hardly written twice by chance.
_PASSAGE_WORDS = 13
_COUNTS = "read, short, long, symbols, repeated lines, same, near duplicates, kept".split(", ")

Fraction = Annotated[float, Field(ge=0, le=1)]


class CleanSettings(Settings):
    """What is left out; see each setting."""

    near_duplicates: Fraction = 0.8
    """Leave out documents that share this fraction of their runs of 5 words (Jaccard similarity)
    with an earlier one; 0 leaves out only those that are the same."""

    min_characters: int = Field(50, ge=0, le=10**12)
    """Leave out shorter documents."""

    max_characters: int | None = Field(None, ge=1, le=10**12)
    """Leave out longer documents; not below min_characters."""

    max_symbols: Fraction = 0.4
    """Leave out documents with a greater fraction of characters, spaces aside, that are neither
    letters nor digits."""

    max_repeated_lines: Fraction = 0.5
    """Leave out documents with a greater fraction of their text in lines that came before in it."""

    @model_validator(mode="after")
    def _check_bounds(self) -> "CleanSettings":
        if self.max_characters is not None and self.max_characters < self.min_characters:
            raise ValueError(
                f"max_characters {self.max_characters} is less than min_characters "
                f"{self.min_characters}, so nothing would be left"
            )
        return self


@dataclass
class Count:
    """The documents that were read, kept, or left out for one reason."""

    num_documents: int = 0
    num_bytes: int = 0
    example: str = ""
    """How the first of them begins."""


@dataclass
class CleanSummary:
    """What was read, left out by each reason, and kept."""

    counts: dict[str, Count]
    num_passages: int
    """Runs of 13 words in the validation text."""
    num_leaked: int = 0
    """Those that also stand in what is kept."""
    seconds: float = 0.0


def clean(
    inputs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None,
    settings: CleanSettings | None = None,
    *,
    validation: Sequence[str | os.PathLike[str]] = (),
    num_threads: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    engine: Engine | None = None,
    part_bytes: int = 32 << 20,
    **reading: Any,
) -> CleanSummary:
    """Write the documents worth keeping as JSON lines.

    out: the .jsonl file; None counts only.
    validation: files to look for in what is kept; `num_leaked` says how much of them is there.
    engine: reads and measures parts of the text elsewhere; what is written is the same.
    reading: field, encoding and errors, see `text_files.Reading`.
    """
    started = time.perf_counter()
    settings = settings or CleanSettings()
    how = Reading(**reading)
    sources = find_sources(inputs)
    target = None if out is None else Path(out)
    if target is not None:
        if target.suffix != ".jsonl" or target.is_dir():
            raise ConfigError(f"--out {target} must be a file of JSON lines; name it .jsonl")
        check_not_input(target, sources)
        if target.exists() and not overwrite:
            raise ConfigError(f"{target} exists; name another file, or use --overwrite")
    passages = np.empty(0, np.uint64)
    if validation:
        batches = read(Part(tuple(find_sources(validation))), how)
        passages = np.unique(np.concatenate([_passages(one.data, one.bounds) for one in batches]))
    measuring = _Measuring(how, 1 if engine else num_threads or num_cores(), passages)
    parts = [Part(tuple(sources))]
    if engine is not None:
        parts = cut_into_parts(sources, part_bytes, how)
    work = _Cleaning(settings, len(passages))
    summary = work.summary
    with contextlib.ExitStack() as stack:
        results = run_parts(engine or map, measuring, parts, progress)
        stack.enter_context(contextlib.closing(results))  # type: ignore[type-var]
        groups = stack.enter_context(read_ahead(results, _DEPTH))
        file = None
        if target is not None:
            file = stack.enter_context(stack.enter_context(atomic_path(target)).open("wb"))
        for group in groups:
            work.add(group, file)
        if not summary.counts["kept"].num_documents:
            read_documents = summary.counts["read"].num_documents
            raise DataError(f"no document is left of {read_documents:,}; loosen the settings")
    summary.seconds = time.perf_counter() - started
    return summary


@dataclass(frozen=True)
class _Group:
    """Measured documents, each already a line of JSON."""

    lines: list[bytes]
    lengths: npt.NDArray[np.int64]
    measured: npt.NDArray[np.void]
    repeated_lines: npt.NDArray[np.float64]
    leaks: list[set[int]]
    """The validation passages that each document has."""


@dataclass(frozen=True)
class _Measuring:
    """All that can be found out about documents by themselves; it can be pickled."""

    reading: Reading
    num_threads: int
    passages: npt.NDArray[np.uint64]

    def __call__(self, part: Part) -> Iterator[_Group]:
        passages = set(self.passages.tolist())
        with read_ahead(read(part, self.reading, batch_bytes=4 << 20), _DEPTH) as batches:
            for batch in batches:
                view, bounds = memoryview(batch.data), batch.bounds
                texts = [bytes(view[begin:end]) for begin, end in bounds.tolist()]
                found = [
                    passages.intersection(_passages(text, np.array([[0, len(text)]])).tolist())
                    for text in (texts if passages else [])
                ]
                yield _Group(
                    [encode_line(text, self.reading.field) for text in texts],
                    bounds[:, 1] - bounds[:, 0],
                    measure(batch.data, bounds, self.num_threads),
                    np.array([_repeated_lines(text) for text in texts]),
                    found,
                )


class _Cleaning:
    """Judges documents in order."""

    def __init__(self, settings: CleanSettings, num_passages: int) -> None:
        self._settings = settings
        self._duplicates = Duplicates(settings.near_duplicates)
        self.summary = CleanSummary({name: Count() for name in _COUNTS}, num_passages)
        self._leaked: set[int] = set()

    def add(self, group: _Group, file: IO[bytes] | None) -> None:
        settings, rows = self._settings, group.measured
        num_visible = np.maximum(rows["characters"] - rows["spaces"], 1)
        is_left = np.ones(len(rows), np.bool_)
        self._count("read", group, np.flatnonzero(is_left))
        for name, is_bad in {
            "short": rows["characters"] < settings.min_characters,
            "long": rows["characters"] > (settings.max_characters or 1 << 62),
            "symbols": rows["symbols"] / num_visible > settings.max_symbols,
            "repeated lines": group.repeated_lines > settings.max_repeated_lines,
        }.items():
            self._count(name, group, np.flatnonzero(is_left & is_bad))
            is_left &= ~is_bad
        left = np.flatnonzero(is_left)
        found = self._duplicates.add(rows[left])
        kept = left[found == 0]
        self._count("same", group, left[found == SAME])
        self._count("near duplicates", group, left[found == ALIKE])
        self._count("kept", group, kept)
        for row in kept.tolist():
            if group.leaks:
                self._leaked |= group.leaks[row]
            if file is not None:
                file.write(group.lines[row])
        self.summary.num_leaked = len(self._leaked)

    def _count(self, name: str, group: _Group, rows: npt.NDArray[np.int64]) -> None:
        count = self.summary.counts[name]
        count.num_documents += len(rows)
        count.num_bytes += int(group.lengths[rows].sum())
        if len(rows) and not count.example:
            (text,) = json.loads(group.lines[rows[0]]).values()
            count.example = " ".join(text[:1000].split())[:_EXCERPT_CHARACTERS]


def encode_line(text: bytes, field: str) -> bytes:
    """UTF-8 as a line of JSON."""
    return json.dumps({field: text.decode()}, ensure_ascii=False).encode() + b"\n"


def _repeated_lines(text: bytes) -> float:
    """The fraction of a document's text in lines that came before in it."""
    lines = [line for line in map(bytes.strip, text.split(b"\n")) if line]
    total = sum(map(len, lines))
    return 1 - sum(map(len, set(lines))) / total if total else 0.0


def _passages(data: bytes | memoryview, bounds: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """A hash of every run of words."""
    found: Any = hash_shingles(data, bounds.data, _PASSAGE_WORDS)
    return np.frombuffer(memoryview(found), np.uint64)
