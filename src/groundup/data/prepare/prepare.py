"""Files to shards: documents are read ahead, encoded by all cores, and written in order.

Shard k holds the documents that begin in part k of the sources. The shards depend on sources,
tokenizer and settings alone: not on threads, batches, engines or kills. A document goes to the
validation split by its own hash, so it stays there when files are added.
"""

import contextlib
import logging
import os
import re
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from groundup.data.pipeline import read_ahead
from groundup.data.prepare.encoding import EncodedDocuments, PartEncoder
from groundup.data.prepare.writing import (
    ShardWriter,
    Sidecar,
    describe_part,
    join_sources,
    write_shard,
)
from groundup.data.shards.check import check_hash, token_sizes
from groundup.data.shards.index import (
    FORMAT,
    INDEX_NAME,
    SPLITS,
    EndToken,
    ShardEntry,
    ShardIndex,
    SplitEntry,
    read_index,
    read_record,
    write_record,
)
from groundup.data.shards.reading import check_shard_file
from groundup.errors import ConfigError, DataError, TokenizerError
from groundup.files import locked, remove_leftovers
from groundup.runtime import Engine, Progress, num_cores
from groundup.text_files import (
    END_OF_TEXT,
    Errors,
    Part,
    Reading,
    Source,
    cut_into_parts,
    cut_part,
    find_sources,
    path_text,
)

if TYPE_CHECKING:
    from groundup.tokenizer import Tokenizer

_BATCH_BYTES = 8 << 20
_BATCH_BYTES_PER_THREAD = 2 << 20
_DEPTH = 2
_OURS = re.compile(r"(?:(?:train|validation)_\d{6,}\.bin(?:\.partial)?|shard_\d{6,}\.json)")

# Of the piece that is taken for validation where there are too few documents to choose from.
_FEWEST_IDS = 16
_SMALL_TAIL_IDS = 4_096

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PrepareSummary:
    """What was done: `outcome` says how, `num_bytes` how much text this process encoded."""

    folder: Path
    index: ShardIndex
    outcome: Literal["written", "resumed", "up to date"]
    num_bytes: int
    seconds: float


def prepare(
    inputs: Sequence[str | os.PathLike[str]],
    tokenizer: "Tokenizer",
    out: str | os.PathLike[str],
    *,
    validation_fraction: float = 0.005,
    shard_bytes: int = 400_000_000,
    separator: str = END_OF_TEXT,
    field: str = "text",
    errors: Errors = "strict",
    encoding: str | None = None,
    num_threads: int | None = None,
    batch_bytes: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    engine: Engine | None = None,
    part_bytes: int = 32 << 20,
) -> PrepareSummary:
    """Encode the documents of files, folders or globs into shards in the folder `out`.

    A folder that was not finished keeps its first shards as far as they are what this call would
    write. A finished one is left alone if it came from the same, and refused otherwise.

    validation_fraction: fraction of the documents for validation, chosen by their hashes. Where
        they are so few that none is chosen, the end of the text is taken, a tenth of a small one.
    shard_bytes: about how much of the files makes a shard; a packed file is never divided.
    separator: the special token between documents of plain text, which ends each one in the shards.
    field, errors, encoding: how text is read, see `text_files.Reading`.
    num_threads, batch_bytes: how much is encoded at once; the shards do not depend on it.
    engine: reads and encodes parts of `part_bytes` elsewhere; the shards are the same.
    """
    started = time.perf_counter()
    if not 0 <= validation_fraction < 1:
        raise ConfigError(
            f"validation_fraction is {validation_fraction:g}; choose 0 or more, below 1"
        )
    for name, value in (("shard_bytes", shard_bytes), ("num_threads", num_threads)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}; it must be at least 1")
    if separator not in tokenizer.special_tokens:
        known = ", ".join(list(tokenizer.special_tokens)[:5]) or "none"
        raise TokenizerError(
            f"the tokenizer has no special token {separator} to end documents with (it has: "
            f"{known}); name one of them as the separator, or add it with --special-token"
        )
    reading = Reading((separator,), field, encoding, errors)
    settings: dict[str, Any] = {
        "validation_fraction": float(validation_fraction),
        "shard_bytes": shard_bytes,
        "errors": errors,
        "separators": [separator],
        "field": field,
        **({"encoding": encoding} if encoding else {}),
    }
    made_with = {
        "dtype": "uint16" if tokenizer.id_type.itemsize == 2 else "uint32",
        "vocab_size": tokenizer.vocab_size,
        "tokenizer": tokenizer.id,
        "end": EndToken(id=tokenizer.special_tokens[separator], text=separator).model_dump(),
        "settings": settings,
    }
    sources = find_sources(inputs, errors)
    num_threads = num_threads or num_cores()
    encoder = PartEncoder(
        tokenizer,
        tokenizer.special_tokens[separator],
        reading,
        1 if engine else num_threads,
        batch_bytes or max(_BATCH_BYTES, num_threads * _BATCH_BYTES_PER_THREAD),
    )
    with _claim(Path(out)) as folder:
        if overwrite:
            _clear(folder)
        elif (folder / INDEX_NAME).exists():
            index = _check_finished(folder, made_with, sources)
            _remove(
                folder, {entry.file for split in index.splits.values() for entry in split.shards}
            )
            return PrepareSummary(folder, index, "up to date", 0, time.perf_counter() - started)
        work = _Preparing(
            folder, made_with, encoder, cut_into_parts(sources, shard_bytes, reading, 1 << 40)
        )
        num_kept = work.resume()
        work.run(engine, part_bytes, progress)
        index = work.finish()
    outcome: Literal["resumed", "written"] = "resumed" if num_kept else "written"
    return PrepareSummary(folder, index, outcome, work.num_bytes, time.perf_counter() - started)


class _Preparing:
    """One run over the parts, each of which becomes a shard."""

    def __init__(
        self, folder: Path, made_with: dict[str, Any], encoder: PartEncoder, parts: list[Part]
    ) -> None:
        self._folder = folder
        self._made_with = made_with
        self._encoder = encoder
        self._parts = parts
        self._done: list[Sidecar] = []
        self._dtype = np.dtype(made_with["dtype"]).newbyteorder("<")
        self.num_bytes = 0

    def resume(self) -> int:
        """Keep the first shards that are there and what they should be; returns how many."""
        for number, part in enumerate(self._parts):
            try:
                sidecar = read_record(self._sidecar(number), Sidecar, "groundup-shard", 1)
                for entry in sidecar.shards.values():
                    check_hash(self._folder, entry, self._dtype.itemsize)
            except (DataError, OSError):
                break
            is_same = (sidecar.made_with, sidecar.part) == (self._made_with, describe_part(part))
            if not is_same or any(source.stamp is None for source in part.sources):
                break
            self._done.append(sidecar)
        kept = {entry.file for sidecar in self._done for entry in sidecar.shards.values()}
        _remove(self._folder, kept | {self._sidecar(n).name for n in range(len(self._done))})
        return len(self._done)

    def run(self, engine: Engine | None, part_bytes: int, progress: Progress | None) -> None:
        """Write the shards that are missing."""
        sizes = [source.size for part in self._parts for source in part.sources]
        total = None if None in sizes else sum(part.num_bytes for part in self._parts)
        fraction = self._made_with["settings"]["validation_fraction"]
        items = self._encode(engine, part_bytes)
        writer: ShardWriter | None = None
        try:
            with contextlib.closing(items), read_ahead(items, _DEPTH) as ready:
                for number, done, item in ready:
                    writer = writer or ShardWriter(self._folder, number, self._dtype, fraction)
                    if item is None:
                        self._finish_shard(number, writer)
                        writer = None
                        continue
                    writer.write(item)
                    self.num_bytes += int(item.lengths.sum())
                    if progress is not None:
                        progress(done, total)
        finally:
            if writer is not None:
                writer.close()
        if progress is not None and total is not None:
            progress(total, total)

    def finish(self) -> ShardIndex:
        """Write the index: from now on the folder is finished."""
        splits: dict[str, list[ShardEntry]] = {
            split: [one.shards[split] for one in self._done if split in one.shards]
            for split in SPLITS
        }
        if not splits["train"] and not splits["validation"]:
            raise DataError("the inputs hold no documents")
        if self._made_with["settings"]["validation_fraction"] and not splits["validation"]:
            self._cut_a_tail(splits)
        index = ShardIndex(
            **{**self._made_with, "end": EndToken(**self._made_with["end"])},
            splits={split: SplitEntry.of(shards) for split, shards in splits.items()},
            sources=join_sources(one.sources for one in self._done),
        )
        write_record(self._folder / INDEX_NAME, index)
        _remove(self._folder, {entry.file for shards in splits.values() for entry in shards})
        return index

    def _encode(
        self, engine: Engine | None, part_bytes: int
    ) -> Generator[tuple[int, int, EncodedDocuments | None], None, None]:
        """Yield shard numbers, bytes read so far, and documents; None after the last of a shard."""
        first = len(self._done)
        done = sum(part.num_bytes for part in self._parts[:first])
        work: list[tuple[int, bool, Part]] = []
        for number, part in enumerate(self._parts[first:], first):
            reading = self._encoder.reading
            smaller = [part] if engine is None else cut_part(part, part_bytes, reading)
            work += [(number, one is smaller[-1], one) for one in smaller]
        results = (engine or map)(self._encoder, [part for _, _, part in work])
        for (number, is_last, part), items in zip(work, results, strict=True):
            for item in items:
                yield number, done + min(item.read_bytes, part.num_bytes), item
            done += part.num_bytes
            if is_last:
                yield number, done, None

    def _finish_shard(self, number: int, writer: ShardWriter) -> None:
        part = self._parts[number]
        shards, sources = writer.finish(part)
        sidecar = Sidecar(
            made_with=self._made_with, part=describe_part(part), shards=shards, sources=sources
        )
        write_record(self._sidecar(number), sidecar)
        self._done.append(sidecar)

    def _cut_a_tail(self, splits: dict[str, list[Any]]) -> None:
        """Let the end of the text, at least a tenth of a small one, be the validation split.

        A kill in between leaves a shard that is not what its sidecar says, which is written anew.
        """
        last = splits["train"][-1]
        if last.num_ids < 2 * _FEWEST_IDS:
            return
        all_ids = sum(shard.num_ids for shard in splits["train"])
        fraction = self._made_with["settings"]["validation_fraction"]
        wanted = max(int(fraction * all_ids), min(all_ids // 10, _SMALL_TAIL_IDS), _FEWEST_IDS)
        path, end = self._folder / last.file, self._made_with["end"]
        ids = np.memmap(path, self._dtype, "r")
        cut = len(ids) - min(wanted, len(ids) // 2)
        tail = ids[cut:]
        num_documents = int(np.count_nonzero(tail == end["id"]))
        num_bytes = int(token_sizes(self._encoder.tokenizer)[tail].sum())
        num_bytes -= num_documents * len(end["text"].encode())
        count, whole = f"{len(tail):,}", f"{all_ids:,}"
        _log.info("too few documents for validation: the last %s of %s ids are taken", count, whole)
        name = last.file.replace("train", "validation")
        splits["validation"] = [write_shard(path.with_name(name), [tail], num_documents, num_bytes)]
        head = [ids[:cut], np.array([end["id"]], self._dtype)]
        counts = last.num_documents - num_documents + 1, last.num_bytes - num_bytes
        splits["train"][-1] = write_shard(path, head, *counts)

    def _sidecar(self, number: int) -> Path:
        return self._folder / f"shard_{number:06d}.json"


@contextlib.contextmanager
def _claim(folder: Path) -> Iterator[Path]:
    """Make the folder if need be and hold it, so that no second process writes there."""
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file; name a folder for the shards")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder) as is_ours:
        if not is_ours:
            raise DataError(f"another process is writing to {folder}; wait until it is done")
        remove_leftovers(folder)
        yield folder


def _clear(folder: Path) -> None:
    index = folder / INDEX_NAME
    # Of a damaged index this is most likely still there.
    if index.is_file() and FORMAT.encode() not in index.read_bytes():
        raise DataError(f"{index} is not an index of shards; choose another folder, or move it")
    # The index goes first: without it the folder no longer looks finished.
    index.unlink(missing_ok=True)
    _remove(folder, set())


def _remove(folder: Path, kept: set[str]) -> None:
    """Delete files of shards, finished or not, that are not among those to keep."""
    for name in os.listdir(folder):
        if _OURS.fullmatch(name) and name not in kept:
            os.unlink(folder / name)


def _check_finished(
    folder: Path, made_with: dict[str, Any], sources: Sequence[Source]
) -> ShardIndex:
    """The index of a folder that is what would be written; a DataError names the difference."""
    index = read_index(folder)
    written_ns = (folder / INDEX_NAME).stat().st_mtime_ns
    found = {**index.model_dump(include=set(made_with) - {"settings"}), **index.settings}
    wanted = {**made_with, **made_with["settings"]}
    # Folders of before have these instead of shard_bytes.
    ignored = {"settings", "shard_ids", "column"} | ({"shard_bytes"} - set(found))
    differences = [
        f"its {name} is {found.get(name)}, not {wanted.get(name)}"
        for name in sorted(
            {*found, *wanted} - ignored, key=lambda name: (name != "tokenizer", name)
        )
        if found.get(name) != wanted.get(name)
    ]
    paths, old_paths = [path_text(one) for one in sources], [one.path for one in index.sources]
    if paths != old_paths:
        other = sorted(set(paths) ^ set(old_paths))
        differences.append(f"its sources differ ({other[0] if other else 'another order'})")
    else:
        for entry, source in zip(index.sources, sources, strict=True):
            is_older = source.stamp is not None and (
                source.stamp == entry.stamp
                if entry.stamp is not None
                else source.stamp.isdigit() and int(source.stamp) < written_ns
            )
            if entry.unreadable is None and not (is_older and entry.size == source.size):
                differences.append(f"{entry.path} has changed since, or cannot be read again")
                break
    if differences:
        raise DataError(
            f"{folder} is finished, but {differences[0]}; choose another folder, or replace it "
            f"with --overwrite"
        )
    for split in index.splits.values():
        for shard in split.shards:
            check_shard_file(folder, shard, index.id_bytes)
    return index
