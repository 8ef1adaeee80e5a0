"""Survey a text before training: its size, and prompts taken from its documents."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from groundup.text_files import Part, Reading, find_sources, no_text_error, read

# At most this much text is read, with this many excerpts per batch searched for prompts.
_MAX_BYTES = 64_000_000
_BATCH_BYTES = 4_000_000
_EXCERPTS_PER_BATCH = 40
_EXCERPT_BYTES = 2_000
_MAX_PROMPT = 40
_NUM_PROMPTS = 3


@dataclass(frozen=True)
class Survey:
    """Size and prompts of a text; counts are extrapolated if it was not read to its end."""

    num_files: int
    num_documents: int
    num_bytes: int
    """Size of the text, decompressed."""
    document_bytes: int
    """The median size of a document."""
    prompts: tuple[str, ...]
    """The first words of a few documents."""
    is_whole: bool
    """Whether the whole text was read."""


def survey_text(inputs: Sequence[str | os.PathLike[str]], **reading: Any) -> Survey:
    """Survey a text by reading at most its first 64 MB."""
    how = Reading(**reading)
    sources = find_sources(inputs, how)
    part = Part(tuple(sources))
    sizes: list[int] = []
    openings: dict[str, None] = {}
    read_bytes = 0
    for batch in read(part, how, batch_bytes=_BATCH_BYTES):
        if sum(sizes) >= _MAX_BYTES:
            break
        read_bytes = batch.read_bytes
        sizes += (batch.bounds[:, 1] - batch.bounds[:, 0]).tolist()
        openings |= dict.fromkeys(_openings(memoryview(batch.data), batch.bounds))
    num_bytes = sum(sizes)
    if not num_bytes:
        raise no_text_error(sources, how)
    is_whole = num_bytes < _MAX_BYTES
    factor = 1.0 if is_whole else max(1.0, part.num_bytes / max(1, read_bytes))
    found = list(openings)
    chosen = np.linspace(0, len(found) - 1, _NUM_PROMPTS if found else 0).astype(int).tolist()
    return Survey(
        num_files=len(sources),
        num_documents=round(len(sizes) * factor),
        num_bytes=round(num_bytes * factor),
        document_bytes=int(np.median(sizes)),
        prompts=tuple(dict.fromkeys(found[one] for one in chosen)),
        is_whole=is_whole,
    )


def _openings(data: memoryview, bounds: npt.NDArray[np.int64]) -> Iterator[str]:
    """Yield the first words of documents, or of lines throughout a few long documents."""
    step = max(1, len(bounds) // _EXCERPTS_PER_BATCH)
    for begin, end in bounds[::step].tolist():
        stride = max(_EXCERPT_BYTES, (end - begin) * len(bounds) // _EXCERPTS_PER_BATCH)
        for place in range(begin, end, stride):
            text = str(data[place : min(end, place + _EXCERPT_BYTES)], "utf-8", "ignore")
            # An excerpt from the middle of a document starts within a line: skip that.
            lines = text.splitlines()[int(place > begin) :]
            starts = (line.split()[:4] for line in lines)
            whole = (one for one in starts if len(one) == 4 and sum(map(str.isalpha, one)) >= 3)
            opening = " ".join(next(whole, []))
            if 0 < len(opening) <= _MAX_PROMPT:
                yield opening
