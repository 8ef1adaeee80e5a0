"""Split a corpus into parts that can be read independently: whole files, or a byte range of one.

Each reader moves its range to the next document boundaries. Neighbors find the same boundary, so
the parts contain every document once, in order, without a prior pass over the text.
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
    """Whether a source can be read in ranges. Compressed files, tables, pages and files to decode
    must be read from the start, and web servers may not support ranges."""
    if source.compression or reading.encoding or source.path.startswith("http"):
        return False
    is_text = source.format == "text" and not _may_overlap(reading.marks)
    is_lines = source.format == "json_lines" and has_usual_field(source, reading)
    return (is_text or is_lines) and source.size is not None


def cut_into_parts(
    sources: Sequence[Source], part_bytes: int, reading: Reading, max_sources: int = 4096
) -> list[Part]:
    """Group or split sources into parts of about `part_bytes`, in order."""
    parts: list[Part] = []
    pending: list[Source] = []
    num_bytes = 0
    for source in sources:
        size = source.size or 0
        is_cut = size > part_bytes and can_cut(source, reading)
        is_full = num_bytes + size > part_bytes or len(pending) >= max_sources
        if pending and (is_cut or is_full):
            parts.append(Part(tuple(pending)))
            pending, num_bytes = [], 0
        if is_cut:
            parts += cut_part(Part((source,), (0, size)), part_bytes, reading)
        else:
            pending.append(source)
            num_bytes += size
    return [*parts, Part(tuple(pending))] if pending else parts


def cut_part(part: Part, part_bytes: int, reading: Reading) -> list[Part]:
    """Split a part into smaller ones."""
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
    """Run a function on all parts and yield its results in order; reports bytes to `progress`."""
    done, total = 0, sum(part.num_bytes for part in parts)
    for part, results in zip(parts, engine(function, parts), strict=True):
        yield from results
        done += part.num_bytes
        if progress is not None:
            progress(done, total)


def open_span(
    raw: IO[bytes], span: tuple[int, int], size: int, marks: Sequence[bytes]
) -> tuple[IO[bytes], int]:
    """Return a stream of the documents that begin in a byte range of a file, and its position."""
    first, last = span
    begin = end = _find_start(raw, first, min(last, size), size, marks)
    if begin < last:
        end = _find_start(raw, last, size, size, marks)
    raw.seek(begin)
    return stream_of(_read(raw, end - begin)), begin


def _find_start(raw: IO[bytes], begin: int, limit: int, size: int, marks: Sequence[bytes]) -> int:
    """Return the start of the first document at or after `begin`, but at most `limit`."""
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
    """Yield the next `num_bytes` bytes of a file."""
    while num_bytes > 0:
        data = raw.read(min(num_bytes, _WINDOW_BYTES))
        if not data:
            raise OSError("it was truncated while being read")
        yield data
        num_bytes -= len(data)


def _may_overlap(marks: Sequence[bytes]) -> bool:
    """Whether separators can overlap, so that matches depend on where the search starts."""
    return any(
        one[:1] in other[1:] or (one is not other and other.startswith(one))
        for one, other in itertools.product(marks, repeat=2)
    )
