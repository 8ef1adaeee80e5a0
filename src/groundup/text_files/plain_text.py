"""Read plain text from a stream, split into batches of whole documents at separators.

Memory grows with the longest document, unless a `find_cut` cuts long documents into pieces.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import IO

import numpy as np

from groundup.text_files.documents import DocumentBatch, FindCut, split_documents
from groundup.text_files.encodings import CUT, num_cut_bytes


def read_text(
    stream: IO[bytes],
    marks: Sequence[bytes],
    notes: list[str],
    batch_bytes: int,
    find_cut: FindCut | None,
    piece_bytes: int,
) -> Iterator[DocumentBatch]:
    """Yield the documents between separators, byte for byte.

    A document longer than `piece_bytes` is yielded in pieces, cut by `find_cut`. They depend only
    on the document, not on `batch_bytes`.
    """
    longest = max(map(len, marks), default=0)
    # A separator at the end of the window may be a prefix of a longer one, so leave a margin.
    room_bytes = 2 * longest + 1
    max_bytes = piece_bytes if find_cut else sys.maxsize
    window = batch_bytes = min(batch_bytes, max_bytes)
    rest: bytes | memoryview = b""
    is_inside = False
    while True:
        data, at_end = _fill(stream, rest, max(window + room_bytes, len(rest) + 1))
        if at_end and (num_bytes := num_cut_bytes(data)):
            notes.append(CUT)
            data = data[:-num_bytes]
        bounds = split_documents(data, marks)
        num_complete, cut = len(bounds), len(data)
        if not at_end:
            last = int(np.searchsorted(bounds[:, 0], len(data) - longest, side="right")) - 1
            num_complete, cut = max(0, last), int(bounds[last, 0]) if last >= 0 else 0
        size = int(bounds[0, 1]) if len(bounds) and not bounds[0, 0] else 0
        if is_inside or size > max_bytes:
            piece = 0
            if find_cut and size > max_bytes:
                margin = 0 if num_complete else longest
                piece = find_cut(data[: size - margin if window > max_bytes else max_bytes])
                piece = 0 if piece >= size and num_complete else piece
            cut, end = piece, piece or size
            is_inside = piece > 0 or not num_complete
            if piece or num_complete:
                yield DocumentBatch(data[:end], np.array([[0, end]]), (), 0, is_inside, True)
            if num_complete and not piece:
                cut = int(bounds[1, 0]) if len(bounds) > 1 else len(data)
        else:
            is_too_long = bounds[:num_complete, 1] - bounds[:num_complete, 0] > max_bytes
            if is_too_long.any():
                num_complete = int(is_too_long.argmax())
                cut = int(bounds[num_complete, 0])
            if num_complete:
                yield DocumentBatch(data[:cut], bounds[:num_complete])
        if at_end and cut == len(data):
            return
        grown = 2 * max(window, len(data))
        window = batch_bytes if cut else min(grown, max_bytes) if window < max_bytes else grown
        rest = data[cut:]


def _fill(stream: IO[bytes], rest: bytes | memoryview, size: int) -> tuple[memoryview, bool]:
    """Return `rest` followed by the stream, up to `size` bytes, and whether the stream ended."""
    # Uninitialized: zeroing would cost as much as reading.
    buffer = np.empty(size, np.uint8).data
    filled = len(rest)
    buffer[:filled] = rest
    while filled < size:
        count = stream.readinto(buffer[filled:])  # type: ignore[attr-defined]
        if not count:
            return buffer[:filled], True
        filled += count
    return buffer, False
