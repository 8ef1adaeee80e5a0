"""Plain text cut into pieces of whole documents, from a regular file or from a stream."""

from collections.abc import Callable, Iterator, Sequence
from typing import IO

import numpy as np

from groundup.text_files.inputs import Source
from groundup.text_files.opening import check_length, read_window
from groundup.text_files.pieces import Bounds, Piece


def cut_file(
    file: int, num_bytes: int, separators: Sequence[bytes], piece_bytes: int, source: Source
) -> Iterator[Piece]:
    """Yield the first `num_bytes` of a regular file, which is open as `file`."""
    begin, window = 0, piece_bytes
    while begin < num_bytes:
        end = min(begin + window, num_bytes)
        data = read_window(file, begin, end, source)
        found = _find_cut(data, separators, at_end=end == num_bytes)
        if found is None:
            window *= 2
            continue
        cut, bounds = found
        yield Piece(data[:cut], bounds, begin, begin + cut)
        check_length(file, end)
        begin, window = begin + cut, piece_bytes


def cut_stream(
    stream: IO[bytes], separators: Sequence[bytes], piece_bytes: int, tell: Callable[[], int]
) -> Iterator[Piece]:
    """Yield what a stream gives; `tell` says how far the file behind it has been read."""
    offset, rest, wanted = 0, b"", piece_bytes
    while True:
        missing = wanted - len(rest)
        fresh = _read_fully(stream, missing)
        at_end = len(fresh) < missing
        rest += fresh
        found = _find_cut(rest, separators, at_end=at_end) if rest else None
        if found is not None:
            cut, bounds = found
            yield Piece(memoryview(rest)[:cut], bounds, offset, tell())
            offset, rest, wanted = offset + cut, rest[cut:], piece_bytes
        if at_end:
            return
        if found is None or len(rest) >= wanted:
            # Doubling keeps the work linear in the length of a long document.
            wanted = 2 * max(wanted, len(rest))


def _find_cut(
    data: bytes | memoryview, separators: Sequence[bytes], *, at_end: bool
) -> tuple[int, Bounds] | None:
    """Where the first document begins that may go on behind `data`, and the bounds before it.

    None: there is no place to cut yet. A separator in the last bytes could be the beginning of a
    longer one, so a cut needs room behind it.
    """
    from groundup._native import find_documents

    found = memoryview(find_documents(data, list(separators)))
    bounds = np.frombuffer(found, np.int64).reshape(-1, 2)
    if at_end:
        return len(data), bounds
    room = len(data) - max(map(len, separators), default=0)
    row = int(np.searchsorted(bounds[:, 0], room, side="right")) - 1
    if row < 0 or bounds[row, 0] == 0:
        return None
    return int(bounds[row, 0]), bounds[:row]


def _read_fully(stream: IO[bytes], count: int) -> bytes:
    """Read `count` bytes, fewer only at the end: a pipe may give less at once."""
    pieces = []
    while count > 0 and (piece := stream.read(count)):
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)
