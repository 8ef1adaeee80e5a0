"""The folder that shards go to: whose it is, and whether to begin, to go on, or to leave it.

Going on is allowed when what lies there is a beginning of what the command at hand would write; a
difference is named.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from groundup.data.corpus_writer import (
    Journal,
    Position,
    ShardIdentity,
    find_shard_files,
    read_journal,
    write_journal,
)
from groundup.data.documents import STDIN, Source, read_document_batches
from groundup.data.shard_index import (
    INDEX_NAME,
    JOURNAL_NAME,
    HashTree,
    PrepareSettings,
    ShardIndex,
    SourceEntry,
    hash_each,
    read_index,
)
from groundup.data.shards import check_shard_file
from groundup.data.verify import check_hash
from groundup.errors import DataError
from groundup.files import remove_stale_temporaries


@contextlib.contextmanager
def claim_folder(folder: Path) -> Iterator[Path]:
    """Make the folder if need be and hold it, so that no second process writes there."""
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file; name a folder for the shards")
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_stale_temporaries(folder)
        yield folder
    except BlockingIOError:
        raise DataError(f"another process is writing to {folder}; wait until it is done") from None
    finally:
        os.close(lock)


def open_journal(
    folder: Path, identity: ShardIdentity, sources: list[Source], *, overwrite: bool
) -> Journal | ShardIndex:
    """The index of a folder that is up to date, else the journal to go on from."""
    if overwrite:
        _clear(folder)
    if (folder / INDEX_NAME).exists():
        return _check_finished(folder, identity, sources)
    if (folder / JOURNAL_NAME).exists():
        return _check_unfinished(folder, identity, sources)
    if strays := find_shard_files(folder):
        raise DataError(
            f"{folder} has {strays[0]} but no {INDEX_NAME}; choose another folder, or replace what "
            f"is there with --overwrite"
        )
    journal = Journal(identity=identity)
    write_journal(folder, journal)
    return journal


def path_text(source: Source) -> str:
    """A path as JSON can hold it."""
    return os.fsencode(source).decode("utf-8", "backslashreplace")


def stamp(source: Source) -> tuple[int | None, int | None]:
    """Size and time of a file, which tell that it is still the same; unknown for a stream."""
    if source == STDIN:
        return None, None
    try:
        status = os.stat(source)
    except OSError as error:
        raise DataError(f"{source} cannot be read: {error.strerror}") from error
    return status.st_size, status.st_mtime_ns


def _clear(folder: Path) -> None:
    # The index goes first: without it the folder no longer looks finished.
    for name in (INDEX_NAME, JOURNAL_NAME, *find_shard_files(folder)):
        (folder / name).unlink(missing_ok=True)


def _check_finished(folder: Path, identity: ShardIdentity, sources: list[Source]) -> ShardIndex:
    index = read_index(folder)
    found = ShardIdentity(**{name: getattr(index, name) for name in ShardIdentity.model_fields})
    written_ns = (folder / INDEX_NAME).stat().st_mtime_ns
    differences = _compare_identities(found, identity)
    paths = list(map(path_text, sources))
    if not differences and [entry.path for entry in index.sources] != paths:
        differences = [f"{len(index.sources)} sources, not just these {len(paths)}"]
        if len(paths) >= len(index.sources):
            new = next(path for path in paths if path not in {e.path for e in index.sources})
            differences = [f"sources without {new}"]
    for entry, source in zip(index.sources, sources, strict=False):
        if differences:
            break
        size, modified_ns = stamp(source)
        is_older = modified_ns is not None and modified_ns < written_ns
        if entry.size != size or not (is_older or _has_hash(source, entry, identity.settings)):
            differences = [f"{entry.path} as it was before it changed"]
    if differences:
        raise DataError(
            f"{folder} is finished, but was made with {'; '.join(differences)}; choose another "
            f"folder, or replace what is there with --overwrite"
        )
    for split in index.splits.values():
        for shard in split.shards:
            check_shard_file(folder, shard, index.id_bytes)
    (folder / JOURNAL_NAME).unlink(missing_ok=True)
    return index


def _check_unfinished(folder: Path, identity: ShardIdentity, sources: list[Source]) -> Journal:
    journal = read_journal(folder)
    differences = _compare_identities(journal.identity, identity)
    differences = differences or _compare_sources(journal.position, sources, identity.settings)
    if differences:
        raise DataError(
            f"{folder} holds the beginning of shards made with {'; '.join(differences)}; run that "
            f"again to finish it, or start over with --overwrite"
        )
    id_bytes = np.dtype(identity.dtype).itemsize
    for split in journal.splits.values():
        for shard in split.shards:
            check_hash(folder, shard, id_bytes)
    return journal.model_copy(update={"identity": identity})


def _compare_identities(found: ShardIdentity, wanted: ShardIdentity) -> list[str]:
    """What the folder was made with, in words, where it differs from what is wanted."""
    differences = []
    if found.tokenizer != wanted.tokenizer:
        differences.append(f"tokenizer {found.tokenizer}, not {wanted.tokenizer}")
    elif found.end != wanted.end:
        differences.append(f"separator {found.end.text}, not {wanted.end.text}")
    for name in PrepareSettings.model_fields:
        old, new = getattr(found.settings, name), getattr(wanted.settings, name)
        if name != "separators" and old != new:
            differences.append(f"{name} {old}, not {new}")
    return differences


def _compare_sources(
    position: Position, sources: list[Source], settings: PrepareSettings
) -> list[str]:
    """How the sources that were read differ from the first of these; later ones may be any."""
    if len(position.finished) > len(sources) or (
        len(position.finished) == len(sources) and position.num_documents
    ):
        return [f"more sources than these {len(sources)}"]
    for entry, modified_ns, source in zip(
        position.finished, position.modified_ns, sources, strict=False
    ):
        if entry.path != path_text(source):
            return [f"source {entry.path} where these have {source}"]
        if source == STDIN:
            return ["standard input, which cannot be read again"]
        is_same = (entry.size, modified_ns) == stamp(source)
        if not is_same and not _has_hash(source, entry, settings):
            return [f"{entry.path} as it was before it changed"]
    return []


def _has_hash(source: Source, entry: SourceEntry, settings: PrepareSettings) -> bool:
    """Read a source again: are its documents still those of the entry?"""
    if source == STDIN:
        return False
    tree = HashTree()
    for batch in read_document_batches(
        [source],
        separators=settings.separators,
        field=settings.field,
        column=settings.column,
        errors=settings.errors,
    ):
        tree.add(hash_each(batch.data, batch.bounds))
    return tree.value() == entry.hash
