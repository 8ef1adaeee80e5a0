"""The types that readers share, and the promise that documents are UTF-8."""

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
"""Stands for a record that is left out."""

Errors = Literal["strict", "replace", "skip"]
Bounds = npt.NDArray[np.int64]
FindCut = Callable[[memoryview], int]
"""The last position where a document may be cut without changing its pre-tokens; 0 for none."""


class Source(NamedTuple):
    """One file to read. Size and stamp (its time, ETag or blob id) tell that it is unchanged."""

    path: str
    """A path, an address such as hf://…, or "-" for standard input."""
    format: str = "text"
    compression: Literal["gzip", "zstd", "xz"] | None = None
    size: int | None = None
    stamp: str | None = None
    is_remote: bool = False

    def __fspath__(self) -> str:
        return self.path

    def __str__(self) -> str:
        """The path in one line."""
        return self.path.replace("\n", "\\n")


class Skipped(NamedTuple):
    """A file that is not read."""

    path: str
    reason: str
    size: int = 0


@dataclass(frozen=True)
class Reading:
    """How text is read."""

    separators: tuple[str, ...] = (END_OF_TEXT,)
    """Texts that end a document of plain text."""
    field: str = "text"
    """The field of JSON lines, or the column of CSV and Parquet, that holds the text."""
    encoding: str | None = None
    """Of files that are not UTF-8, and of standard input; a byte order mark counts more. Without
    one it is guessed."""
    errors: Errors = "strict"
    """What becomes of bytes that are not UTF-8: an error, U+FFFD, or the document is left out. With
    skip, records without a text and files that cannot be read are left out too."""
    follow_links: bool = False
    """Whether links of a folder may lead out of it."""
    drop_duplicates: bool = False
    """Whether files that hold the same as an earlier one are left out."""

    def __post_init__(self) -> None:
        if self.errors not in get_args(Errors):
            raise ConfigError(f"errors is {self.errors!r}, but must be one of {get_args(Errors)}")
        try:
            "x".encode(self.encoding or "utf-8")
        except LookupError:
            raise ConfigError(
                f"encoding is {self.encoding!r}; it must be one that Python knows, such as "
                f"latin-1, cp1252, utf-16, shift_jis or koi8-r"
            ) from None

    @cached_property
    def marks(self) -> list[bytes]:
        """The separators as they stand in files."""
        return [separator.encode() for separator in self.separators]

    @property
    def glue(self) -> bytes:
        """What stands between documents of a batch."""
        return self.marks[0] if self.marks else b""


@dataclass(frozen=True)
class Part:
    """Whole sources, or the documents of a single one that begin in a range of its bytes."""

    sources: tuple[Source, ...]
    span: tuple[int, int] | None = None

    @property
    def num_bytes(self) -> int:
        if self.span is not None:
            return self.span[1] - self.span[0]
        return sum(source.size or 0 for source in self.sources)


class DocumentBatch(NamedTuple):
    """Documents in one buffer of UTF-8: document i is data[bounds[i, 0]:bounds[i, 1]].

    A separator stands between documents wherever `Reading` has one.
    """

    data: bytes | memoryview
    bounds: Bounds
    ends: Sequence[tuple[int, Source, str | None]] = ()
    """After how many of the documents a source is over, and why it could not be read to its end."""
    read_bytes: int = 0
    """How much of the part's files has been read; of the source alone before batches are joined."""
    continues: bool = False
    """A piece of one long document, the rest of which follows."""
    is_alone: bool = False
    """Any piece of a long document, which shares its batch with no other."""


class UnreadableError(DataError):
    """A file that cannot be read, which a corpus of many may do without."""


def pack(texts: Sequence[bytes | memoryview], glue: bytes) -> tuple[bytes, Bounds]:
    """Texts in one buffer with glue between them, and their bounds."""
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    ends = np.cumsum(lengths + len(glue)) - len(glue)
    return glue.join(texts), np.stack([ends - lengths, ends], axis=1)


def encode(text: str, errors: Errors, where: str) -> bytes:
    """Text that was decoded with surrogateescape as UTF-8.

    Half of a surrogate pair is no UTF-8 either.
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
    """The bounds of the documents between separators, empty ones left out."""
    from groundup._native import find_documents

    return np.frombuffer(memoryview(find_documents(data, list(marks))), np.int64).reshape(-1, 2)
