"""The types that all readers share. Documents are UTF-8."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from groundup.errors import ConfigError, DataError

END_OF_TEXT = "<|endoftext|>"
STDIN = "-"
NO_TEXT = b"\xff"
"""Marks a record to be skipped: not valid UTF-8, so it is dropped later."""

Errors = Literal["strict", "replace", "skip"]
Bounds = npt.NDArray[np.int64]
FindCut = Callable[[memoryview], int]
"""Returns the last position where cutting does not change pre-tokens; 0 if there is none."""


class Source(NamedTuple):
    """One file to read. Size and stamp (modification time, ETag or blob id) reveal changes."""

    path: str
    """A path, a URL such as hf://…, or "-" for standard input."""
    format: str = "text"
    compression: Literal["gzip", "zstd", "xz"] | None = None
    size: int | None = None
    stamp: str | None = None
    is_remote: bool = False

    def __fspath__(self) -> str:
        return self.path

    def __str__(self) -> str:
        """The path on one line."""
        return self.path.replace("\n", "\\n")


class Skipped(NamedTuple):
    """A file that was not read, and why."""

    path: str
    reason: str
    size: int = 0


@dataclass(frozen=True)
class Reading:
    """Options for reading text."""

    separators: tuple[str, ...] = (END_OF_TEXT,)
    """Strings that separate documents in plain text."""
    field: str = "text"
    """The field of JSON lines, or the column of CSV and Parquet, that contains the text."""
    encoding: str | None = None
    """Encoding of input that is not UTF-8 and has no byte order mark. Default: guessed."""
    errors: Errors = "strict"
    """How to handle invalid UTF-8: raise an error, replace it with U+FFFD, or skip the document.
    With skip, records without text and unreadable files are skipped too."""
    follow_links: bool = False
    """Whether to follow links that lead out of a folder."""
    drop_duplicates: bool = False
    """Whether to skip files with the same content as an earlier one."""

    def __post_init__(self) -> None:
        if self.errors not in get_args(Errors):
            raise ConfigError(f"errors is {self.errors!r}, but must be one of {get_args(Errors)}")
        try:
            "x".encode(self.encoding or "utf-8")
        except LookupError:
            raise ConfigError(
                f"encoding is {self.encoding!r}; it must be one that Python supports, such as "
                f"latin-1, cp1252, utf-16, shift_jis or koi8-r"
            ) from None

    @cached_property
    def marks(self) -> list[bytes]:
        """The separators, as bytes."""
        return [separator.encode() for separator in self.separators]

    @property
    def glue(self) -> bytes:
        """The separator that joins documents in a batch."""
        return self.marks[0] if self.marks else b""


@dataclass(frozen=True)
class Part:
    """Whole sources, or the documents of one source that begin in a byte range."""

    sources: tuple[Source, ...]
    span: tuple[int, int] | None = None

    @property
    def num_bytes(self) -> int:
        if self.span is not None:
            return self.span[1] - self.span[0]
        return sum(source.size or 0 for source in self.sources)


class DocumentBatch(NamedTuple):
    """Documents in one UTF-8 buffer: document i is data[bounds[i, 0]:bounds[i, 1]].

    If `Reading` has a separator, one is between any two documents.
    """

    data: bytes | memoryview
    bounds: Bounds
    ends: Sequence[tuple[int, Source, str | None]] = ()
    """The sources that end in this batch: how many documents come before the end, the source, and a
    note on problems in reading it."""
    read_bytes: int = 0
    """Bytes of the part's files read so far; of the current source before batches are joined."""
    continues: bool = False
    """Whether this is a piece of a long document that continues in the next batch."""
    is_alone: bool = False
    """Whether this is a piece of a long document, which shares its batch with no other document."""


class UnreadableError(DataError):
    """A file that cannot be read; errors="skip" skips it."""


def pack(texts: Sequence[bytes | memoryview], glue: bytes) -> tuple[bytes, Bounds]:
    """Join texts with glue; returns the buffer and their bounds."""
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    ends = np.cumsum(lengths + len(glue)) - len(glue)
    return glue.join(texts), np.stack([ends - lengths, ends], axis=1)


def encode(text: str, errors: Errors, where: str) -> bytes:
    """Encode text that was decoded with surrogateescape as UTF-8.

    Lone surrogates are handled as invalid UTF-8, too.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        if errors == "strict":
            raise not_utf8(where) from None
        return NO_TEXT if errors == "skip" else re.sub("[\ud800-\udfff]", "\ufffd", text).encode()


def not_utf8(where: str) -> DataError:
    return DataError(
        f"{where}: not UTF-8; name its encoding (--encoding latin-1), or use --errors replace or "
        f"--errors skip"
    )


def split_documents(data: bytes | memoryview, marks: Iterable[bytes]) -> Bounds:
    """Return the bounds of the documents between separators, without empty ones."""
    from groundup._native import find_documents

    return np.frombuffer(memoryview(find_documents(data, list(marks))), np.int64).reshape(-1, 2)
