"""Plain text cut into batches of whole documents, from a regular file or from a stream; a byte
order mark at its beginning is none of it.

A document longer than a few batches is not held in memory: it stays in its mapped file, or goes
from a stream to a file without a name, and whoever reads it gives its pages back.
"""

import mmap
import os
import tempfile
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from typing import IO

import numpy as np

from groundup.errors import DataError
from groundup.text_files.documents import Bounds, DocumentBatch
from groundup.text_files.inputs import Source
from groundup.text_files.opening import check_length, read_window, release_pages

# Where the text of a document may be cut so that nothing changes by it; 0 where nowhere yet.
FindCut = Callable[[memoryview], int]

# A stream's document of more batches than this goes to disk.
_HELD_BATCHES = 4


def cut_file(
    file: int,
    num_bytes: int,
    separators: Sequence[bytes],
    batch_bytes: int,
    source: Source,
    find_cut: FindCut | None = None,
) -> Iterator[DocumentBatch]:
    """Yield the first `num_bytes` of a regular file, which is open as `file`.

    With `find_cut`, documents need not stay whole.

    file: a descriptor.
    num_bytes: as long as it was when it was opened.
    separators: texts between documents.
    batch_bytes: about how much text a batch holds.
    source: named by errors.
    find_cut: where a document that is longer than a batch may be cut.
    """
    search = _Search(separators, find_cut)
    begin = len(BOM_UTF8) if os.pread(file, len(BOM_UTF8), 0) == BOM_UTF8 else 0
    window = batch_bytes
    while begin < num_bytes:
        end = min(begin + window, num_bytes)
        data = read_window(file, begin, end, source)
        found = search.find_cut(data, at_end=end == num_bytes)
        release_pages(data)
        if found is None:
            window *= 2
            continue
        cut, bounds = found
        yield DocumentBatch(data[:cut], bounds, begin, begin + cut)
        check_length(file, end, source)
        begin, window = begin + cut, batch_bytes


def cut_stream(
    stream: IO[bytes],
    separators: Sequence[bytes],
    batch_bytes: int,
    source: Source,
    tell: Callable[[], int],
    find_cut: FindCut | None = None,
    offset: int = 0,
) -> Iterator[DocumentBatch]:
    """Yield what a stream gives; `tell` says how far the file behind it has been read.

    stream: what to read.
    separators, batch_bytes, source, find_cut: as for `cut_file`.
    tell: how far the file behind the stream has been read.
    offset: where the stream begins in the source.
    """
    search = _Search(separators, find_cut)
    rest, wanted = b"" if offset else _read_fully(stream, len(BOM_UTF8)), batch_bytes
    if rest == BOM_UTF8:
        rest, offset = b"", len(BOM_UTF8)
    while True:
        missing = max(1, wanted - len(rest))
        fresh = _read_fully(stream, missing)
        at_end = len(fresh) < missing
        rest += fresh
        data = memoryview(rest)
        found = search.find_cut(data, at_end=at_end) if rest else None
        if found is None and not at_end and len(rest) >= _HELD_BATCHES * batch_bytes:
            data, found, at_end = _put_on_disk(stream, rest, search, batch_bytes, source)
        if found is not None:
            cut, bounds = found
            yield DocumentBatch(data[:cut], bounds, offset, tell())
            offset, rest, wanted = offset + cut, bytes(data[cut:]), batch_bytes
        if at_end:
            return
        if found is None or len(rest) >= wanted:
            wanted = search.widen(max(wanted, len(rest)), batch_bytes)


def _put_on_disk(
    stream: IO[bytes], beginning: bytes, search: "_Search", batch_bytes: int, source: Source
) -> tuple[memoryview, tuple[int, Bounds] | None, bool]:
    """Read on in a document of a file until there is a cut: its view, the cut, if at the end."""
    with tempfile.TemporaryFile() as file:
        fresh, view = beginning, memoryview(b"")
        while True:
            try:
                file.write(fresh)
                file.flush()
            except OSError as error:
                raise DataError(
                    f"{source} holds a document of more than {len(view):,} bytes, which does not "
                    f"fit into {tempfile.gettempdir()} ({error.strerror}); point TMPDIR to a "
                    f"larger disk, or put separators between documents"
                ) from error
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            at_end = len(fresh) < batch_bytes
            found = search.find_cut(view, at_end=at_end)
            release_pages(view)
            if found is not None or at_end:
                return view, found, at_end
            fresh = _read_fully(stream, batch_bytes)


class _Search:
    """Looks for the end of documents in text that grows at its end; nothing is looked at twice."""

    def __init__(self, separators: Sequence[bytes], find_cut: FindCut | None) -> None:
        self._separators = list(separators)
        self._longest = max(map(len, separators), default=0)
        self._find_cut = find_cut
        self._searched = self._tried = 0

    def find_cut(self, data: memoryview, *, at_end: bool) -> tuple[int, Bounds] | None:
        """Where the first document that may continue behind `data` begins, and the bounds before.

        None: there is nowhere to cut yet, and the next `data` begins with this one. A separator in
        the last bytes could be the beginning of a longer one, so a cut needs room behind it.
        """
        bounds = self._find_documents(data)
        cut: tuple[int, Bounds] | None = None
        room = len(data) - self._longest
        row = int(np.searchsorted(bounds[:, 0], room, side="right")) - 1
        if at_end:
            cut = len(data), bounds
        elif row >= 0 and bounds[row, 0] != 0:
            cut = int(bounds[row, 0]), bounds[:row]
        elif len(bounds) == 1 and bounds[0].tolist() == [0, len(data)]:
            # No separator: one that begins from here on may not be complete yet.
            self._searched = min(max(0, room + 1), len(data))
            # The other search begins from the front: linear in all if the text doubles between.
            if self._find_cut and self._searched >= 2 * self._tried:
                self._tried = self._searched
                at = self._find_cut(data[: self._searched])
                cut = (at, np.array([[0, at]], np.int64)) if at else None
        if cut is not None:
            self._searched = self._tried = 0
        return cut

    def widen(self, window: int, step: int) -> int:
        """How much to look at next: more by a step, or twice as much if all is looked at again."""
        return window + step if self._searched else 2 * window

    def _find_documents(self, data: memoryview) -> Bounds:
        from groundup._native import find_documents

        begin = self._searched
        found = memoryview(find_documents(data[begin:], self._separators))
        bounds = np.frombuffer(found, np.int64).reshape(-1, 2) + begin
        if begin and len(bounds) and bounds[0, 0] == begin:
            bounds[0, 0] = 0
        elif begin:
            bounds = np.concatenate([np.array([[0, begin]], np.int64), bounds])
        return bounds


def _read_fully(stream: IO[bytes], count: int) -> bytes:
    """Read `count` bytes, fewer only at the end: a pipe may give less at once."""
    parts = []
    while count > 0 and (part := stream.read(count)):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
