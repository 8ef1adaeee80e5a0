"""Documents in one buffer, and the promise that they are UTF-8.

The native core looks for bad bytes in whole buffers; only documents that have some are touched.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from groundup.errors import DataError, check_choice
from groundup.text_files.inputs import OnError, Source
from groundup.text_files.opening import release_pages

Errors = Literal["strict", "replace", "skip"]
Bounds = npt.NDArray[np.int64]

_STEP_BYTES = 16 << 20


def check_wishes(errors: str, on_error: str) -> None:
    """Raise ConfigError for a wish about bad text or bad files that nobody can fulfil."""
    check_choice("errors", errors, get_args(Errors))
    check_choice("on_error", on_error, get_args(OnError))


@dataclass(frozen=True, eq=False)
class DocumentBatch:
    """Documents that stand in one buffer of UTF-8: document i is data[bounds[i, 0]:bounds[i, 1]].

    `offset` is where the batch begins in the unpacked source, in bytes (in rows for Parquet).
    `num_skipped` documents that stood here are left out because they are not UTF-8.
    """

    data: bytes | memoryview
    bounds: Bounds
    source: Source
    offset: int
    num_skipped: int = 0


class Piece(NamedTuple):
    """What a reader gives: documents, where they begin, and how far the file has been read."""

    data: bytes | memoryview
    bounds: Bounds
    offset: int
    read_bytes: int
    num_skipped: int = 0


def check_utf8(piece: Piece, errors: Errors, source: Source, unit: Literal["byte", "row"]) -> Piece:
    """Make sure that a piece is UTF-8 by the user's wish: stop, put U+FFFD, or leave out.

    `unit` is what the piece's offset counts, and so what the error does.
    """
    view = memoryview(piece.data)
    position = _find_invalid_utf8(view)
    if position < 0:
        return piece
    mended: dict[int, bytes] = {}
    while position >= 0:
        row = int(np.searchsorted(piece.bounds[:, 1], position, side="right"))
        if errors == "strict":
            place = piece.offset + (position if unit == "byte" else row)
            raise not_utf8(f"{source}, {unit} {place}")
        begin, end = piece.bounds[row].tolist()
        mended[row] = b"" if errors == "skip" else _replace_bad_bytes(view[begin:end])
        # Documents are parted by whole characters, so the search can start afresh at an end.
        position = _find_invalid_utf8(view[end:])
        position += end if position >= 0 else 0
    num_skipped = len(mended) if errors == "skip" else 0
    return _put_in(piece, mended)._replace(num_skipped=num_skipped)


def _find_invalid_utf8(view: memoryview) -> int:
    """The offset of the first bad byte, or -1; a long text is let go of behind the search."""
    from groundup._native import find_invalid_utf8

    begin = 0
    while begin < len(view):
        end = min(begin + _STEP_BYTES, len(view))
        # Not inside of a character; bad bytes may go on and on.
        while end < len(view) and end > begin + _STEP_BYTES - 4 and view[end] & 0xC0 == 0x80:
            end -= 1
        position = find_invalid_utf8(view[begin:end])
        if position >= 0:
            return begin + position
        if len(view) > _STEP_BYTES:
            release_pages(view[begin:end])
        begin = end
    return -1


def _replace_bad_bytes(view: memoryview) -> bytes:
    return str(view, "utf-8", "replace").encode()


def drop_empty(piece: Piece) -> Piece:
    """The piece without documents of no bytes."""
    is_filled = piece.bounds[:, 1] > piece.bounds[:, 0]
    return piece if is_filled.all() else piece._replace(bounds=piece.bounds[is_filled])


def join_documents(piece: Piece, joiner: bytes) -> bytes:
    """The text of the documents with `joiner` between them."""
    view = memoryview(piece.data)
    return joiner.join([view[begin:end] for begin, end in piece.bounds.tolist()])


def not_utf8(where: str) -> DataError:
    return DataError(
        f"{where}: not UTF-8; mend the file, or go on with --errors replace or --errors skip"
    )


def _put_in(piece: Piece, replacements: dict[int, bytes]) -> Piece:
    """The piece with the documents of some rows replaced."""
    view = memoryview(piece.data)
    parts: list[bytes | memoryview] = []
    growth = np.zeros(len(piece.bounds), np.int64)
    copied = 0
    for row, text in replacements.items():
        begin, end = piece.bounds[row].tolist()
        parts += [view[copied:begin], text]
        growth[row] = len(text) - (end - begin)
        copied = end
    ends = piece.bounds[:, 1] + np.cumsum(growth)
    begins = ends - (piece.bounds[:, 1] - piece.bounds[:, 0] + growth)
    bounds = np.stack([begins, ends], axis=1)
    return piece._replace(data=b"".join([*parts, view[copied:]]), bounds=bounds)
