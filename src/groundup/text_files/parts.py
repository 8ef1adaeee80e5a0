"""A corpus cut into parts, each to be read by itself: whole files, or a range of one.

A range is moved to where documents begin, by whoever reads it: neighbours find the same place, so
the parts hold every document once, in order, and nobody else has to look at the text.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from groundup.runtime import Engine, Progress
from groundup.text_files.documents import Part, Reading, Source
from groundup.text_files.opening import stream_of
from groundup.text_files.records import has_usual_field

_WINDOW_BYTES = 1 << 16


def can_cut(source: Source, reading: Reading) -> bool:
    """Whether a range of a source can be read: packed files, tables and pages are read from
    front to back, as is what has to be decoded; a server of the web may not give ranges."""
    if source.compression or reading.encoding or source.path.startswith("http"):
        return False
    is_text = source.format == "text" and not _may_overlap(reading.marks)
    is_lines = source.format == "json_lines" and has_usual_field(source, reading)
    return (is_text or is_lines) and source.size is not None


def cut_into_parts(
    sources: Sequence[Source], part_bytes: int, reading: Reading, most_sources: int = 4096
) -> list[Part]:
    """The sources in parts of about `part_bytes` of their files, in order."""
    parts: list[Part] = []
    waiting: list[Source] = []
    num_bytes = 0
    for source in sources:
        size = source.size or 0
        is_cut = size > part_bytes and can_cut(source, reading)
        is_full = num_bytes + size > part_bytes or len(waiting) >= most_sources
        if waiting and (is_cut or is_full):
            parts.append(Part(tuple(waiting)))
            waiting, num_bytes = [], 0
        if is_cut:
            parts += cut_part(Part((source,), (0, size)), part_bytes, reading)
        else:
            waiting.append(source)
            num_bytes += size
    return [*parts, Part(tuple(waiting))] if waiting else parts


def cut_part(part: Part, part_bytes: int, reading: Reading) -> list[Part]:
    """A part in smaller ones."""
    if part.span is None:
        return cut_into_parts(part.sources, part_bytes, reading)
    first, last = part.span
    begins = range(first, last, part_bytes)
    return [Part(part.sources, (begin, min(begin + part_bytes, last))) for begin in begins]


def run_parts(
    engine: Engine,
    function: Callable[[Part], Iterator[Any]],
    parts: Sequence[Part],
    progress: Progress | None,
) -> Iterator[Any]:
    """What a function yields for all parts, in order; `progress` is told the bytes done."""
    done, total = 0, sum(part.num_bytes for part in parts)
    for part, results in zip(parts, engine(function, parts), strict=True):
        yield from results
        done += part.num_bytes
        if progress is not None:
            progress(done, total)


def open_span(
    raw: IO[bytes], span: tuple[int, int], size: int, marks: Sequence[bytes]
) -> tuple[IO[bytes], int]:
    """A stream of the documents that begin in a range of a file, and where it begins."""
    first, last = span
    begin = end = _find_start(raw, first, min(last, size), size, marks)
    if begin < last:
        end = _find_start(raw, last, size, size, marks)
    raw.seek(begin)
    return stream_of(_read(raw, end - begin)), begin


def _find_start(raw: IO[bytes], begin: int, limit: int, size: int, marks: Sequence[bytes]) -> int:
    """Where the first document from `begin` on begins, or `limit` if none does before it."""
    longest = max(map(len, marks), default=0)
    if begin == 0:
        return 0
    while begin < limit:
        context = max(0, begin - longest)
        raw.seek(context)
        data = b"".join(_read(raw, min(begin - context + _WINDOW_BYTES, size - context)))
        found = [(data.find(one, max(0, begin - context - len(one))), len(one)) for one in marks]
        starts = [context + at + length for at, length in found if at >= 0]
        if starts or context + len(data) >= size:
            return min([*starts, limit])
        begin = context + len(data) + 1
    return limit


def _read(raw: IO[bytes], num_bytes: int) -> Iterator[bytes]:
    """Yield what follows in a file, up to a number of bytes."""
    while num_bytes > 0:
        data = raw.read(min(num_bytes, _WINDOW_BYTES))
        if not data:
            raise OSError("it became shorter while it was being read")
        yield data
        num_bytes -= len(data)


def _may_overlap(marks: Sequence[bytes]) -> bool:
    """Whether which separators are in a text may depend on where one begins to look."""
    return any(
        one[:1] in other[1:] or (one is not other and other.startswith(one))
        for one, other in itertools.product(marks, repeat=2)
    )
