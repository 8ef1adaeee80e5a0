"""Corpus cleaning: removes duplicates, near-duplicates and low-quality documents.

All cores, or an engine, compute statistics of each document; one process filters them in order. The
result depends only on the text, its order and the settings. Near-duplicates are found by MinHash
with LSH banding over shingles of 5 words.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from groundup._native import measure_documents
from groundup.config import Settings
from groundup.data.pipeline import read_ahead
from groundup.disk import open_stream
from groundup.errors import ConfigError, DataError
from groundup.files import atomic_path
from groundup.runtime import Engine, Progress, num_cores
from groundup.text_files import (
    Part,
    Reading,
    check_not_input,
    cut_into_parts,
    find_sources,
    no_text_error,
    read,
    run_parts,
)

_DEPTH = 2
_SHINGLE_WORDS = 5
_SIGNATURE_SIZE = 128
# The native core's record for a document.
_MEASURED = np.dtype(
    [(name, np.int64) for name in ("characters", "spaces", "symbols")]
    + [("hash", np.uint64), ("signature", np.uint32, (_SIGNATURE_SIZE,))]
)
# Indexed by outcome; `DuplicateIndex.add` returns the first three.
_OUTCOMES = ("kept", "near duplicates", "same", "short", "symbols")
# Documents remembered per band, so that a common band (boilerplate) stays cheap to compare.
_MAX_CANDIDATES = 64

Fraction = Annotated[float, Field(ge=0, le=1)]


class CleanSettings(Settings):
    """Which documents to remove."""

    near_duplicates: Fraction = 0.8
    """Remove documents whose 5-word shingles have at least this Jaccard similarity with an earlier
    one; 0 removes exact duplicates only."""

    min_characters: int = Field(default=50, ge=0, le=10**12)
    """Remove shorter documents."""

    max_symbols: Fraction = 0.4
    """Remove documents with a higher fraction of non-space characters that are neither letters nor
    digits."""


class Count(NamedTuple):
    """A number of documents and the size of their text."""

    num_documents: int
    num_bytes: int


@dataclass(frozen=True)
class CleanSummary:
    """Counts of documents read, removed for each reason, and kept."""

    counts: dict[str, Count]
    seconds: float


def clean(
    inputs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None,
    settings: CleanSettings | None = None,
    *,
    num_threads: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    engine: Engine | None = None,
    part_bytes: int = 32 << 20,
    **reading: Any,
) -> CleanSummary:
    """Write the documents worth keeping as JSON lines.

    out: a .jsonl file; None only counts.
    engine: reads and measures the text elsewhere; the output is the same.
    reading: field, encoding and errors, see `text_files.Reading`.
    """
    started = time.perf_counter()
    settings, how = settings or CleanSettings(), Reading(**reading)
    sources = find_sources(inputs, how)
    target = None if out is None else Path(out)
    if target is not None:
        if target.suffix != ".jsonl" or target.is_dir():
            raise ConfigError(f"--out {target} must be a JSON lines file; name it .jsonl")
        check_not_input(target, sources)
        if target.exists() and not overwrite:
            raise ConfigError(f"{target} exists; name another file, or use --overwrite")
    measuring = _Measuring(how, 1 if engine else num_threads or num_cores())
    parts = cut_into_parts(sources, part_bytes, how) if engine else [Part(tuple(sources))]
    index = DuplicateIndex(settings.near_duplicates)
    totals = np.zeros((len(_OUTCOMES), 2), np.int64)
    with contextlib.ExitStack() as stack:
        results = run_parts(engine or map, measuring, parts, progress)
        stack.enter_context(contextlib.closing(results))  # type: ignore[type-var]
        groups = stack.enter_context(read_ahead(results, _DEPTH))
        file = None
        if target is not None:
            file = stack.enter_context(open_stream(stack.enter_context(atomic_path(target))))
        for lines, lengths, measured in groups:
            outcomes = judge(measured, settings, index)
            np.add.at(totals, outcomes, np.stack([np.ones_like(lengths), lengths], axis=1))
            if file is not None:
                file.writelines(lines[row] for row in np.flatnonzero(outcomes == 0))
        read_all = Count(*totals.sum(axis=0).tolist())
        if not read_all.num_documents:
            raise no_text_error(sources, how)
        if not totals[0, 0]:
            raise DataError(
                f"all {read_all.num_documents:,} documents were removed; loosen the settings"
            )
    counts = {"read": read_all}
    for name, row in zip(_OUTCOMES[::-1], totals[::-1].tolist(), strict=True):
        counts[name] = Count(*row)
    return CleanSummary(counts, time.perf_counter() - started)


class _Group(NamedTuple):
    """Measured documents, each as a line of JSON."""

    lines: list[bytes]
    lengths: npt.NDArray[np.int64]
    measured: npt.NDArray[np.void]


@dataclass(frozen=True)
class _Measuring:
    """Computes the statistics of each document of a part. Picklable."""

    reading: Reading
    num_threads: int

    def __call__(self, part: Part) -> Iterator[_Group]:
        with read_ahead(read(part, self.reading, batch_bytes=4 << 20), _DEPTH) as batches:
            for data, bounds, *_ in batches:
                texts = [bytes(memoryview(data)[begin:end]) for begin, end in bounds.tolist()]
                lines = [encode_line(text, self.reading.field) for text in texts]
                measured = measure(data, bounds, self.num_threads)
                yield _Group(lines, bounds[:, 1] - bounds[:, 0], measured)


def measure(
    data: bytes | memoryview, bounds: npt.NDArray[np.int64], num_threads: int
) -> npt.NDArray[np.void]:
    """Return the character counts, hash and MinHash signature of each document."""
    found = measure_documents(data, bounds.data, _SHINGLE_WORDS, num_threads)
    return np.frombuffer(memoryview(found), _MEASURED)


class DuplicateIndex:
    """LSH index of the documents kept so far: their hashes, and their signatures by band."""

    def __init__(self, threshold: float) -> None:
        self._threshold, self._num_bands = threshold, num_bands_for(threshold)
        self._hashes = set[int]()
        self._signatures: dict[bytes, list[npt.NDArray[np.uint32]]] = {}

    def add(self, row: np.void) -> int:
        """Return 1 for a near-duplicate of an earlier document and 2 for an exact one; otherwise
        add the document and return 0."""
        hash, signature = int(row["hash"]), row["signature"].copy()
        if hash in self._hashes:
            return 2
        whole, width = signature.tobytes(), 4 * _SIGNATURE_SIZE // max(1, self._num_bands)
        bands = [whole[i * width : (i + 1) * width] + bytes([i]) for i in range(self._num_bands)]
        alike = [self._signatures.setdefault(band, []) for band in bands]
        others = {id(other): other for found in alike for other in found}
        for other in others.values():
            if np.count_nonzero(other == signature) >= self._threshold * _SIGNATURE_SIZE:
                return 1
        self._hashes.add(hash)
        for found in alike:
            if len(found) < _MAX_CANDIDATES:
                found.append(signature)
        return 0


def judge(
    rows: npt.NDArray[np.void], settings: CleanSettings, index: DuplicateIndex
) -> npt.NDArray[np.int64]:
    """Return the outcome of each document, and add those that are kept to the index."""
    num_visible = np.maximum(rows["characters"] - rows["spaces"], 1)
    outcomes = np.where(rows["symbols"] / num_visible > settings.max_symbols, 4, 0)
    outcomes[rows["characters"] < settings.min_characters] = 3
    left = np.flatnonzero(outcomes == 0)
    outcomes[left] = [index.add(row) for row in rows[left]]
    return outcomes


def num_bands_for(threshold: float) -> int:
    """Return the smallest number of bands that finds 90% of the pairs at the threshold."""
    if not threshold:
        return 0
    # A pair shares a given band of r values with probability threshold ** r.
    chances = {n: 1 - (1 - threshold ** (_SIGNATURE_SIZE // n)) ** n for n in (8, 16, 32, 64)}
    return next((n for n, chance in chances.items() if chance >= 0.9), _SIGNATURE_SIZE)


def encode_line(text: bytes, field: str) -> bytes:
    """Encode a UTF-8 document as a JSON line."""
    return json.dumps({field: text.decode()}, ensure_ascii=False).encode() + b"\n"
