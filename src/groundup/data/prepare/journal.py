"""What `unfinished.json` says about shards being made: with what, and how far.

It names a beginning of what an undisturbed run would write; when it is written is `corpus_writer`'s
matter, whether to continue from it `folder`'s.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field

from groundup.data.shards.index import (
    JOURNAL_NAME,
    SPLITS,
    EndToken,
    HashTree,
    PrepareSettings,
    Record,
    ShardEntry,
    SourceEntry,
    read_record,
)

JOURNAL_FORMAT = "groundup-unfinished-shards"
JOURNAL_VERSION = 1


class ShardIdentity(Record):
    """What shards are made with: the parts of the index that are known beforehand."""

    dtype: Literal["uint16", "uint32"]
    vocab_size: int
    tokenizer: str
    end: EndToken
    settings: PrepareSettings


class Position(Record):
    """How far the sources have been read: the finished ones, and documents of the next."""

    finished: list[SourceEntry] = Field(default_factory=list)
    modified_ns: list[int | None] = Field(default_factory=list)
    num_documents: int = 0
    num_bytes: int = 0
    hash: str = HashTree().value()


class SplitState(Record):
    """What a split consists of at some moment: finished shards, and how much of the next."""

    shards: list[ShardEntry] = Field(default_factory=list)
    num_ids: int = 0
    num_documents: int = 0
    num_bytes: int = 0


def _new_splits() -> dict[str, SplitState]:
    return {split: SplitState() for split in SPLITS}


class Journal(Record):
    """The whole of `unfinished.json`."""

    format: str = JOURNAL_FORMAT
    version: int = JOURNAL_VERSION
    identity: ShardIdentity
    position: Position = Position()
    splits: dict[str, SplitState] = Field(default_factory=_new_splits)


def read_journal(folder: Path) -> Journal:
    return read_record(folder / JOURNAL_NAME, Journal, JOURNAL_FORMAT, JOURNAL_VERSION)
