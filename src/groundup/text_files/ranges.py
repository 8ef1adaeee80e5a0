"""A range of a file's bytes, moved to where documents begin: both ends, as its neighbours do.

So ranges that cover a file hold every document once, in order, wherever they were cut.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from groundup.text_files.documents import DocumentBatch, Errors
from groundup.text_files.inputs import Source, classify
from groundup.text_files.json_lines import read_json_lines
from groundup.text_files.opening import open_source
from groundup.text_files.parts import TextPart
from groundup.text_files.plain_text import FindCut, cut_stream

FindStart = Callable[[bytes, int], int]
"""The first index from a given one on where a reader may begin; the length where there is none."""

_WINDOW_BYTES = 1 << 16
# Before and behind a place, this much of the text decides whether it may be cut there.
_CUT_BYTES = 8


def read_range(
    source: Source,
    part: TextPart,
    *,
    separators: Sequence[bytes],
    field: str,
    errors: Errors,
    batch_bytes: int,
    find_cut: FindCut | None,
    find_start: FindStart | None,
) -> Iterator[DocumentBatch]:
    """Yield the documents that begin in a range of plain text or JSON lines.

    source: the file.
    part: has the range.
    separators: texts between documents of plain text.
    field: where JSON lines hold the text.
    errors: what to do with lines that are not UTF-8; plain text is left as it is.
    batch_bytes: about how much text a batch has.
    find_cut: where a document of plain text that is longer than a batch may be cut.
    find_start: where plain text may begin and end, if documents need not be whole.
    """
    is_text = classify(source)[0] == "text"
    marks = separators if is_text else [b"\n"]
    find_start = (find_start if is_text else None) or _find_separator(marks)
    margin = max(map(len, [*marks, b""])) + _CUT_BYTES
    assert part.span is not None and part.size is not None
    first, last = part.span
    with open_source(source, None) as (raw, _):
        begin = end = _find_start(raw, first, min(last, part.size), part.size, find_start, margin)
        if begin < last:
            end = _find_start(raw, last, part.size, part.size, find_start, margin)
        stream = io.BufferedReader(_Span(raw, begin, end), _WINDOW_BYTES)

        def tell() -> int:
            return raw.tell() - begin

        if is_text:
            yield from cut_stream(stream, marks, batch_bytes, source, tell, find_cut, begin)
        else:
            where = f"{source} after byte {begin}," if begin else source
            yield from read_json_lines(stream, field, errors, where, batch_bytes, tell)


def _find_separator(separators: Sequence[bytes]) -> FindStart:
    """Finds what stands behind a separator."""

    def find(data: bytes, at: int) -> int:
        found = [(data.find(one, max(0, at - len(one))), len(one)) for one in separators]
        return min((begin + size for begin, size in found if begin >= 0), default=len(data))

    return find


def _find_start(
    raw: IO[bytes], begin: int, limit: int, size: int, find_start: FindStart, margin: int
) -> int:
    """The first start from `begin` on, or `limit` where none comes before it.

    raw: the whole file of `size` bytes, which can be read anywhere.
    margin: how far a start depends on the text on both sides.
    """
    if begin == 0:
        return 0
    while begin < limit:
        context = max(0, begin - margin)
        raw.seek(context)
        data = raw.read(begin - context + _WINDOW_BYTES + margin)
        is_end = context + len(data) >= size
        usable = len(data) if is_end else len(data) - margin
        at = find_start(data, begin - context)
        if at < len(data) and at <= usable:
            return min(context + at, limit)
        if is_end or not data:
            break
        begin = context + usable + 1
    return limit


class _Span(io.RawIOBase):
    """A range of a file."""

    def __init__(self, raw: IO[bytes], begin: int, end: int) -> None:
        self._raw = raw
        self._left = end - begin
        raw.seek(begin)

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        view = memoryview(target).cast("B")
        data = self._raw.read(min(len(view), self._left))
        if self._left and view and not data:
            raise OSError("it became shorter while it was being read")
        view[: len(data)] = data
        self._left -= len(data)
        return len(data)
