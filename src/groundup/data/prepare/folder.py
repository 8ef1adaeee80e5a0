"""The folder that shards go to: whose it is, and whether to begin, to continue, or to leave it.

Continuing is allowed when what lies there is a beginning of what the command at hand would write; a
difference is named.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from groundup.data.prepare.journal import Journal, Position, ShardIdentity, read_journal
from groundup.data.prepare.shard_writer import find_shard_files
from groundup.data.prepare.sources import UNKNOWN, path_text, read_source, stamp
from groundup.data.shards.check import check_hash
from groundup.data.shards.index import (
    FORMAT,
    INDEX_NAME,
    JOURNAL_NAME,
    HashTree,
    PrepareSettings,
    ShardIndex,
    SourceEntry,
    hash_each,
    read_index,
    write_record,
)
from groundup.data.shards.reading import check_shard_file
from groundup.errors import DataError
from groundup.files import locked, remove_stale_temporaries
from groundup.text_files import STDIN, EmptyFileError, OnError, Source


@contextlib.contextmanager
def claim_folder(folder: Path) -> Iterator[Path]:
    """Make the folder if need be and hold it, so that no second process writes there."""
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file; name a folder for the shards")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder) as is_ours:
        if not is_ours:
            raise DataError(f"another process is writing to {folder}; wait until it is done")
        remove_stale_temporaries(folder)
        yield folder


def open_journal(
    folder: Path,
    identity: ShardIdentity,
    sources: list[Source],
    *,
    on_error: OnError,
    overwrite: bool,
) -> Journal | ShardIndex:
    """The index of a folder that is up to date, else the journal to continue from.

    folder: where the shards are, or will be.
    identity: what shards must come from to be the same: tokenizer, settings, sources.
    sources: the files to encode.
    on_error: "skip" passes over sources that cannot be read.
    overwrite: begin anew, whatever is there.
    """
    if overwrite:
        _clear(folder)
    if (folder / INDEX_NAME).exists():
        return _check_finished(folder, identity, sources, on_error)
    if (folder / JOURNAL_NAME).exists():
        return _check_unfinished(folder, identity, sources, on_error)
    if strays := find_shard_files(folder):
        raise DataError(
            f"{folder} has {strays[0]} but no {INDEX_NAME}; choose another folder, or replace what "
            f"is there with --overwrite"
        )
    journal = Journal(identity=identity)
    write_record(folder / JOURNAL_NAME, journal)
    return journal


def _clear(folder: Path) -> None:
    index = folder / INDEX_NAME
    # Of a damaged index this is most likely still there.
    if index.is_file() and FORMAT.encode() not in index.read_bytes():
        raise DataError(f"{index} is not an index of shards; choose another folder, or move it")
    # The index goes first: without it the folder no longer looks finished.
    for name in (INDEX_NAME, JOURNAL_NAME, *find_shard_files(folder)):
        (folder / name).unlink(missing_ok=True)


def _check_finished(
    folder: Path, identity: ShardIdentity, sources: list[Source], on_error: OnError
) -> ShardIndex:
    index = read_index(folder)
    found = ShardIdentity(**{name: getattr(index, name) for name in ShardIdentity.model_fields})
    written_ns = (folder / INDEX_NAME).stat().st_mtime_ns
    difference = (
        _compare_identities(found, identity)
        or _compare_paths([entry.path for entry in index.sources], list(map(path_text, sources)))
        or _find_unreadable(index.sources, on_error)
        or _find_changed(index.sources, sources, written_ns, identity.settings)
    )
    if difference is not None:
        raise DataError(
            f"{folder} is finished, but {difference}; choose another folder, or replace what is "
            f"there with --overwrite"
        )
    for split in index.splits.values():
        for shard in split.shards:
            check_shard_file(folder, shard, index.id_bytes)
    (folder / JOURNAL_NAME).unlink(missing_ok=True)
    return index


def _check_unfinished(
    folder: Path, identity: ShardIdentity, sources: list[Source], on_error: OnError
) -> Journal:
    journal = read_journal(folder)
    found = journal.identity
    if found.settings.errors == "strict":
        # All that was read so far is valid, so any way of treating the rest can continue from it.
        settings = found.settings.model_copy(update={"errors": identity.settings.errors})
        found = found.model_copy(update={"settings": settings})
    difference = (
        _compare_identities(found, identity)
        or _find_unreadable(journal.position.finished, on_error)
        or _compare_position(journal.position, sources, identity.settings)
    )
    if difference is not None:
        raise DataError(
            f"{folder} holds the beginning of other shards: {difference}; finish it with what it "
            f"was begun with, or start over with --overwrite"
        )
    id_bytes = np.dtype(identity.dtype).itemsize
    for split in journal.splits.values():
        for shard in split.shards:
            check_hash(folder, shard, id_bytes)
    return journal.model_copy(update={"identity": identity})


def _compare_identities(found: ShardIdentity, wanted: ShardIdentity) -> str | None:
    """How the folder differs from what is wanted, in words."""
    if found.tokenizer != wanted.tokenizer:
        return f"its tokenizer is {found.tokenizer}, not {wanted.tokenizer}"
    if found.end != wanted.end:
        return f"its separator is {found.end.text}, not {wanted.end.text}"
    names = [name for name in PrepareSettings.model_fields if name != "separators"]
    pairs = [
        (name, getattr(found.settings, name), getattr(wanted.settings, name)) for name in names
    ]
    differences = [
        f"its {name} is {_show(old)}, not {_show(new)}" for name, old, new in pairs if old != new
    ]
    return "; ".join(differences) or None


def _show(value: object) -> str:
    return " ".join(value) if isinstance(value, list) else str(value)


def _compare_paths(found: list[str], wanted: list[str]) -> str | None:
    if found == wanted:
        return None
    found_set, wanted_set = set(found), set(wanted)
    for path in found:
        if path not in wanted_set:
            return f"it was made from {path} as well"
    for path in wanted:
        if path not in found_set:
            return f"it was made without {path}"
    return "it was made from these sources in another order"


def _find_unreadable(entries: list[SourceEntry], on_error: OnError) -> str | None:
    """A source that was skipped, where none may be."""
    if on_error == "skip":
        return None
    skipped = (entry for entry in entries if entry.unreadable is not None)
    return next((f"{entry.path} was skipped as unreadable" for entry in skipped), None)


def _find_changed(
    entries: list[SourceEntry], sources: list[Source], written_ns: int, settings: PrepareSettings
) -> str | None:
    """A source that is not what the index says; only those newer than the index are read."""
    for entry, source in zip(entries, sources, strict=True):
        if entry.unreadable is not None:
            continue
        size, modified_ns = stamp(source)
        is_older = modified_ns is not None and modified_ns < written_ns
        if entry.size != size or not (is_older or _has_hash(source, entry, settings)):
            return f"{entry.path} has changed since, or cannot be read again"
    return None


def _compare_position(
    position: Position, sources: list[Source], settings: PrepareSettings
) -> str | None:
    """How the sources that were read differ from the first of these; later ones may be any."""
    num_begun = len(position.finished) + (position.num_documents > 0)
    if num_begun > len(sources):
        return f"it was made from {num_begun} sources, not {len(sources)}"
    for entry, modified_ns, source in zip(
        position.finished, position.modified_ns, sources, strict=False
    ):
        if entry.path != path_text(source):
            return f"it was made from {entry.path} where {source} is given now"
        if entry.unreadable is not None:
            continue
        is_same = modified_ns is not None and (entry.size, modified_ns) == stamp(source)
        if not is_same and not _has_hash(source, entry, settings):
            return f"{entry.path} has changed since, or cannot be read again"
    for source in sources[len(position.finished) : num_begun]:
        if stamp(source) == UNKNOWN:
            name = "standard input" if source == STDIN else source
            return f"it was made from {name}, which cannot be read again"
    return None


def _has_hash(source: Source, entry: SourceEntry, settings: PrepareSettings) -> bool:
    """Read a source again: are its documents still those of the entry?"""
    if stamp(source) == UNKNOWN:
        return False
    tree = HashTree()
    with contextlib.suppress(EmptyFileError):
        for batch in read_source(source, settings):
            tree.add(hash_each(batch.data, batch.bounds))
    return tree.value() == entry.hash
