"""The schema of `index.json`, which describes a folder of shards, and the hash that it uses."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pydantic
from pydantic_core import to_json

from groundup._native import hash_documents
from groundup.config import with_current_names
from groundup.errors import DataError
from groundup.files import check_plain_file, parse_json, write_bytes_atomic

FORMAT: Literal["groundup-shards"] = "groundup-shards"
INDEX_NAME = "index.json"
SIDECARS = "shard_*.json"
"""Sidecars of finished shards, in a folder that is not finished."""

Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = ("train", "validation")

HASH_BLOCK_BYTES = 1 << 16

RecordType = TypeVar("RecordType", bound="Record")
Optional = Annotated[
    pydantic.StrictStr | None, pydantic.Field(exclude_if=lambda value: value is None)
]


class Record(pydantic.BaseModel):
    """Part of one of our JSON files: frozen, with unknown fields forbidden."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _rename(cls, values: Any) -> Any:
        return with_current_names(values)


class ShardEntry(Record):
    """One finished shard: whole documents, each followed by the end token."""

    file: str = pydantic.Field(max_length=255)
    num_tokens: int = pydantic.Field(gt=0)
    num_documents: int
    num_bytes: int
    """Size of the text, without separators."""
    hash: str


class SplitEntry(Record):
    """All shards of a split, and their totals."""

    num_tokens: int
    num_documents: int
    num_bytes: int
    shards: list[ShardEntry]

    @classmethod
    def of(cls, shards: list[ShardEntry]) -> "SplitEntry":
        names = ("num_tokens", "num_documents", "num_bytes")
        sums = {name: sum(getattr(shard, name) for shard in shards) for name in names}
        return cls(**sums, shards=shards)


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """A source file. The hash covers its documents, so that recompressing the file keeps it.

    A dataclass, which is smaller than a Record: there may be one per document.
    """

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = pydantic.ConfigDict(extra="forbid")

    path: pydantic.StrictStr
    size: pydantic.StrictInt | None
    num_documents: pydantic.StrictInt
    num_bytes: pydantic.StrictInt
    hash: pydantic.StrictStr
    unreadable: Optional = None
    """Why the file, or the rest of it, was skipped."""
    stamp: Optional = None
    """Its modification time, ETag or blob id."""


class EndToken(Record):
    """The token after every document; its text separates documents in plain text files."""

    id: int
    text: str


class ShardIndex(Record):
    """The contents of `index.json`."""

    format: Literal["groundup-shards"] = FORMAT
    version: Literal[1] = 1
    dtype: Literal["uint16", "uint32"]
    vocab_size: int
    tokenizer: str
    end: EndToken
    splits: dict[Split, SplitEntry]
    sources: list[SourceEntry]
    settings: dict[str, Any]
    """The arguments of `prepare` that affect the ids, besides tokenizer and sources."""

    @property
    def id_bytes(self) -> int:
        return np.dtype(self.dtype).itemsize

    @property
    def shards(self) -> list[ShardEntry]:
        return [shard for split in self.splits.values() for shard in split.shards]


class HashTree:
    """SHA-256 over the native 64-bit hashes of blocks or documents, in order.

    The 64-bit hashes run at memory speed, several times as fast as SHA-256 over the bytes. Detects
    corruption; not secure against an adversary.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, leaves: npt.NDArray[np.uint64]) -> None:
        self._digest.update(leaves.astype("<u8", copy=False).data)

    def add_bytes(self, data: bytes | memoryview) -> None:
        """Add bytes of a shard in multiples of HASH_BLOCK_BYTES, except for the last call."""
        begins = np.arange(0, len(data), HASH_BLOCK_BYTES, dtype=np.int64)
        ends = np.minimum(begins + HASH_BLOCK_BYTES, len(data))
        self.add(hash_each(data, np.stack([begins, ends], axis=1)))

    def value(self) -> str:
        return f"tree64:{self._digest.hexdigest()}"


def hash_each(data: bytes | memoryview, bounds: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return the native hash of each document in a buffer."""
    return np.frombuffer(memoryview(hash_documents(data, bounds.data)), np.uint64)


def read_index(folder: Path) -> ShardIndex:
    """Read the index of a finished folder; raises DataError if it is missing or damaged."""
    path = folder / INDEX_NAME
    if not path.is_file():
        if any(folder.glob(SIDECARS)):
            raise DataError(f"{folder} is not finished; run the same groundup data prepare again")
        what = "is a file, not a folder of shards" if folder.is_file() else "does not exist"
        what = f"has no {INDEX_NAME}" if folder.is_dir() else what
        raise DataError(f"{folder} {what}; make shards with groundup data prepare")
    index = read_record(path, ShardIndex)
    for name, split in index.splits.items():
        if split != SplitEntry.of(split.shards):
            raise DataError(f"{path} is damaged: the totals of split {name} do not add up")
    return index


def find_index(folder: Path) -> ShardIndex | None:
    """Read the index of a folder; None if it is missing or damaged."""
    try:
        return read_index(folder)
    except DataError:
        return None


def write_record(path: Path, record: Record) -> None:
    # Straight to bytes: with many sources, a str as well would dominate memory.
    write_bytes_atomic(path, to_json(record, indent=2) + b"\n")


def read_record(path: Path, record_type: type[RecordType]) -> RecordType:
    """Read a record; raises DataError with the position if its file is damaged."""
    try:
        check_plain_file(path)
        return record_type.model_validate(parse_json(path.read_bytes()))
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = f"at {'.'.join(map(str, first['loc']))}: {first['msg']}"
    except ValueError as error:
        where = f"or truncated: {error}"
    raise DataError(
        f"{path} is damaged or from another version of groundup, {where}; "
        f"run groundup data prepare again"
    )
