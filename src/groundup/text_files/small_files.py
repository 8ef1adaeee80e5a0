"""Small plain files, many at a time: read one by one, most of the time would go beside the text."""

import os
import stat
from codecs import BOM_UTF8
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from groundup.text_files.documents import Bounds
from groundup.text_files.encodings import is_seven_bit
from groundup.text_files.inputs import Source, classify

_SMALL_BYTES = 64 << 10
_MOST_FILES = 4096


class SmallFile(NamedTuple):
    """A file read whole, with the time of its last change."""

    text: bytes
    modified_ns: int


def read_small_files(
    sources: Sequence[Source], first: int, max_bytes: int, encoding: str | None = None
) -> list[SmallFile]:
    """Read `sources` from number `first` on, as long as they are small, plain, regular and UTF-8.

    What ends the list is left to those who read one file at a time and can say what is wrong with
    it. The files are about `max_bytes` together, and not so many that nobody else gets a turn.
    There are none where `encoding` makes other text of what may be UTF-8.
    """
    if is_seven_bit(encoding):
        return []
    files: list[SmallFile] = []
    num_bytes = 0
    for source in sources[first : first + _MOST_FILES]:
        file = None if num_bytes >= max_bytes else _read(source, min(max_bytes, _SMALL_BYTES))
        if file is None:
            break
        files.append(file)
        num_bytes += len(file.text)
    return files


def bounds_of(text: bytes, separators: Sequence[bytes]) -> Bounds:
    """The bounds of the documents in a whole text, empty ones left out."""
    from groundup._native import find_documents

    if not any(separator in text for separator in separators):
        return np.array([[0, len(text)]], np.int64)
    found = memoryview(find_documents(text, list(separators)))
    bounds = np.frombuffer(found, np.int64).reshape(-1, 2)
    return bounds[bounds[:, 1] > bounds[:, 0]]


def _read(source: Source, max_bytes: int) -> SmallFile | None:
    from groundup._native import find_invalid_utf8

    if not isinstance(source, Path) or classify(source) != ("text", None):
        return None
    try:
        # Asked before it is opened: the writer of a pipe leaves when a reader does.
        before = os.stat(source)
        if not stat.S_ISREG(before.st_mode) or not 0 < before.st_size <= max_bytes:
            return None
        file = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(file, before.st_size + 1)
            after = os.fstat(file)
        finally:
            os.close(file)
    except OSError:
        return None
    is_same = (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    is_plain = find_invalid_utf8(text) < 0 and b"\0" not in text and not text.startswith(BOM_UTF8)
    if not is_same or len(text) != before.st_size or not is_plain:
        return None
    return SmallFile(text, before.st_mtime_ns)
