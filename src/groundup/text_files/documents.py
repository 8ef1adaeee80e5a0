"""Documents in one buffer, and the promise that they are UTF-8.

The native core looks for bad bytes in whole buffers; only documents that have some are touched.
"""

from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from groundup.errors import DataError, check_choice
from groundup.text_files.guessing import guess_encoding
from groundup.text_files.inputs import OnError, Source
from groundup.text_files.opening import release_pages

Errors = Literal["strict", "replace", "skip"]
Bounds = npt.NDArray[np.int64]

_STEP_BYTES = 16 << 20
# Enough of a text to tell its encoding by.
_SAMPLE_BYTES = 20_000


class DocumentBatch(NamedTuple):
    """Documents in one buffer of UTF-8: document i is data[bounds[i, 0]:bounds[i, 1]]."""

    data: bytes | memoryview
    bounds: Bounds
    offset: int
    """Where the batch begins in the unpacked source, in bytes (in rows for Parquet)."""
    read_bytes: int
    """How much of the file had been read when the batch was complete."""
    num_skipped: int = 0
    """Documents that stood here and are left out because they are not UTF-8 or no text."""
    num_replaced: int = 0
    """Documents with U+FFFD for bytes that are not UTF-8."""


def check_error_handling(errors: str, on_error: str) -> None:
    """Raise ConfigError for a way of treating bad text or bad files that does not exist."""
    check_choice("errors", errors, get_args(Errors))
    check_choice("on_error", on_error, get_args(OnError))


def check_utf8(
    batch: DocumentBatch, errors: Errors, source: Source, unit: Literal["byte", "row"]
) -> DocumentBatch:
    """Make sure that a batch is UTF-8: stop, put U+FFFD, or leave documents out, as `errors` says.

    `unit` is what the batch's offset counts, and so what the error does.

    batch: documents as they were read.
    errors: strict, replace or skip.
    source: named by the error.
    """
    view = memoryview(batch.data)
    position = _find_invalid_utf8(view)
    if position < 0:
        return batch
    fixed: dict[int, bytes] = {}
    while position >= 0:
        row = int(np.searchsorted(batch.bounds[:, 1], position, side="right"))
        if errors == "strict":
            at = batch.offset + (position if unit == "byte" else row)
            # The line that it stands in, and more.
            before = bytes(view[max(0, position - _SAMPLE_BYTES) : position])
            line = position - len(before) + before.rfind(b"\n") + 1
            sample = None if unit == "row" else bytes(view[line : line + _SAMPLE_BYTES])
            raise not_utf8(f"{source}, {unit} {at}", sample)
        begin, end = batch.bounds[row].tolist()
        fixed[row] = b"" if errors == "skip" else str(view[begin:end], "utf-8", "replace").encode()
        # Documents are parted by whole characters, so the search can start afresh at an end.
        position = _find_invalid_utf8(view[end:])
        position += end if position >= 0 else 0
    batch = _put_in(batch, fixed)
    if errors == "skip":
        return batch._replace(num_skipped=len(fixed))
    return batch._replace(num_replaced=len(fixed))


def _find_invalid_utf8(view: memoryview) -> int:
    """The offset of the first bad byte, or -1; a long text is let go of behind the search."""
    from groundup._native import find_invalid_utf8

    begin = 0
    while begin < len(view):
        end = min(begin + _STEP_BYTES, len(view))
        # Not inside of a character; bad bytes may be of any number.
        while end < len(view) and end > begin + _STEP_BYTES - 4 and view[end] & 0xC0 == 0x80:
            end -= 1
        position = find_invalid_utf8(view[begin:end])
        if position >= 0:
            return begin + position
        if len(view) > _STEP_BYTES:
            release_pages(view[begin:end])
        begin = end
    return -1


def drop_empty(batch: DocumentBatch) -> DocumentBatch:
    """The batch without documents of no bytes."""
    is_filled = batch.bounds[:, 1] > batch.bounds[:, 0]
    return batch if is_filled.all() else batch._replace(bounds=batch.bounds[is_filled])


def not_utf8(where: str, sample: bytes | None) -> DataError:
    """The error for bytes that are not UTF-8, with the flag that would accept them.

    where: the file, and the position in it.
    sample: what stands there, from the beginning of a line on; None if the file's format has no
        other encodings.
    """
    ways = "use --errors replace or --errors skip"
    if sample is None:
        return DataError(f"{where}: not UTF-8; fix the file, or {ways}")
    guessed = guess_encoding(sample)
    if guessed is not None:
        return DataError(
            f"{where}: not UTF-8 but {guessed}, as it seems; read it with --encoding {guessed}, "
            f"or {ways}"
        )
    return DataError(
        f"{where}: not UTF-8; name its encoding (--encoding latin-1, cp1252, shift_jis, …), "
        f"or {ways}"
    )


def _put_in(batch: DocumentBatch, replacements: dict[int, bytes]) -> DocumentBatch:
    """The batch with the documents of some rows replaced."""
    view = memoryview(batch.data)
    parts: list[bytes | memoryview] = []
    growth = np.zeros(len(batch.bounds), np.int64)
    copied = 0
    for row, text in replacements.items():
        begin, end = batch.bounds[row].tolist()
        parts += [view[copied:begin], text]
        growth[row] = len(text) - (end - begin)
        copied = end
    ends = batch.bounds[:, 1] + np.cumsum(growth)
    begins = ends - (batch.bounds[:, 1] - batch.bounds[:, 0] + growth)
    bounds = np.stack([begins, ends], axis=1)
    return batch._replace(data=b"".join([*parts, view[copied:]]), bounds=bounds)
