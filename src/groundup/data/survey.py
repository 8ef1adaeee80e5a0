"""A look at a text before anything is learned from it: how much there is, and of what kind."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from groundup.data.duplicates import ALIKE, SAME, Duplicates, measure
from groundup.errors import DataError
from groundup.runtime import num_cores
from groundup.text_files import Errors, find_sources, read_document_batches

# So much of the text is read, and of that so many excerpts are looked at.
_MAX_BYTES = 64_000_000
_BATCH_BYTES = 4_000_000
_EXCERPTS_PER_BATCH = 40
_EXCERPT_BYTES = 2_000
_MAX_PROMPT = 40
_NUM_PROMPTS = 3


@dataclass(frozen=True)
class Survey:
    """What a text is like; beyond the part that was read, counts are estimated from it."""

    num_files: int
    num_documents: int
    num_bytes: int
    """Of the text, unpacked."""
    document_bytes: int
    """The median of the documents."""
    num_repeated: int
    """Documents that are the same as an earlier one, of those that were read."""
    num_alike: int
    """Documents that are nearly the same, as `groundup data clean` finds them."""
    prompts: tuple[str, ...]
    """How a few of the documents begin."""
    is_whole: bool
    """Whether all of it was read."""


def survey_text(
    inputs: Sequence[str | os.PathLike[str]],
    *,
    field: str = "text",
    errors: Errors = "strict",
    encoding: str | None = None,
) -> Survey:
    """Read the beginning of a text, 64 MB at most, and describe it."""
    sources = find_sources(inputs, errors)
    seen = _Seen()
    batches = read_document_batches(
        sources,
        field=field,
        errors=errors,
        encoding=encoding,
        batch_bytes=_BATCH_BYTES,
        progress=seen.advance,
    )
    for batch in batches:
        if seen.num_bytes >= _MAX_BYTES:
            break
        seen.add(memoryview(batch.data), batch.bounds)
    if not seen.num_bytes:
        raise DataError(f"{os.fspath(inputs[0])} holds no text; name a file or folder that does")
    return seen.survey(len(sources))


@dataclass
class _Seen:
    """What has been counted so far."""

    num_bytes: int = 0
    read: int = 0
    total: int | None = None
    sizes: list[int] = field(default_factory=list)
    duplicates: Duplicates = field(default_factory=Duplicates)
    num_repeated: int = 0
    num_alike: int = 0
    openings: list[str] = field(default_factory=list)

    def advance(self, read: int, total: int | None) -> None:
        self.read, self.total = read, total

    def add(self, data: memoryview, bounds: "np.ndarray") -> None:
        sizes = (bounds[:, 1] - bounds[:, 0]).tolist()
        self.sizes += sizes
        self.num_bytes += sum(sizes)
        found = self.duplicates.add(measure(data, bounds, num_cores()))
        self.num_repeated += int((found == SAME).sum())
        self.num_alike += int((found == ALIKE).sum())
        begins = set(bounds[:, 0].tolist())
        for begin in _spread(bounds):
            text = str(data[begin : begin + _EXCERPT_BYTES], "utf-8", "ignore")
            # In the middle of a document the first line is the rest of one.
            text = text if begin in begins else text.partition("\n")[2]
            self.openings += [one for one in [_opening(text)] if one]

    def survey(self, num_files: int) -> Survey:
        is_whole = self.num_bytes < _MAX_BYTES
        factor = 1.0 if is_whole or not self.total else max(1.0, self.total / max(1, self.read))
        openings = list(dict.fromkeys(self.openings))
        chosen = np.linspace(0, len(openings) - 1, _NUM_PROMPTS).astype(int)
        prompts = dict.fromkeys(openings[one] for one in chosen if openings)
        return Survey(
            num_files=num_files,
            num_documents=round(len(self.sizes) * factor),
            num_bytes=round(self.num_bytes * factor),
            document_bytes=int(np.median(self.sizes)),
            num_repeated=self.num_repeated,
            num_alike=self.num_alike,
            prompts=tuple(prompts),
            is_whole=is_whole,
        )


def _spread(bounds: "np.ndarray") -> Iterator[int]:
    """Where excerpts begin: with documents of the batch, or all over the only long one."""
    if len(bounds) >= _EXCERPTS_PER_BATCH:
        chosen = np.linspace(0, len(bounds) - 1, _EXCERPTS_PER_BATCH).astype(int)
        yield from bounds[chosen, 0].tolist()
        return
    for begin, end in bounds.tolist():
        step = max(_EXCERPT_BYTES, (end - begin) * len(bounds) // _EXCERPTS_PER_BATCH)
        yield from range(begin, end, step)


def _opening(text: str) -> str | None:
    """The first words of the first line that has a few."""
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 4 and sum(word.isalpha() for word in words[:4]) >= 3:
            opening = " ".join(words[:4])
            return opening if len(opening) <= _MAX_PROMPT else None
    return None
