"""Encode files into shards: a pipeline that reads ahead, encodes on all cores and writes in order.

Shard k holds the documents that begin in part k of the sources. The shards depend only on sources,
tokenizer and settings, not on threads, batches, engines or interruptions. A document's hash decides
its split, so it stays there when files are added.
"""

import contextlib
import logging
import os
import re
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from groundup import disk
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
    Split,
    SplitEntry,
    read_index,
    read_record,
    write_record,
)
from groundup.data.shards.reading import check_shard_file
from groundup.errors import DataError, TokenizerError
from groundup.files import locked, remove_leftovers
from groundup.runtime import Engine, Progress, num_cores
from groundup.text_files import (
    END_OF_TEXT,
    Part,
    Reading,
    Source,
    cut_into_parts,
    cut_part,
    find_sources,
    no_text_error,
    path_text,
)

if TYPE_CHECKING:
    from groundup.tokenizer import Tokenizer

_BATCH_BYTES = 8 << 20
_BATCH_BYTES_PER_THREAD = 2 << 20
_DEPTH = 2
_SHARD_FILES = re.compile(r"(?:(?:train|validation)_\d{6,}\.bin(?:\.partial)?|shard_\d{6,}\.json)")

# Tail used for validation if no document is selected: minimum, and maximum of a tenth of the text.
_MIN_TAIL_IDS = 16
_SMALL_TAIL_IDS = 4_096

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PrepareSummary:
    """The result of `prepare`; `num_bytes` is the size of the text that this call encoded."""

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
    num_threads: int | None = None,
    batch_bytes: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    engine: Engine | None = None,
    part_bytes: int = 32 << 20,
    **reading: Any,
) -> PrepareSummary:
    """Encode the documents of files, folders or globs into shards in the folder `out`.

    An unfinished folder keeps its first shards as far as they match what this call would write. A
    finished folder is left as it is if it matches, and raises DataError otherwise.

    validation_fraction: of the documents, selected by their hashes, in [0, 1). If none is selected,
        the end of the text is used instead, a tenth of a small text.
    shard_bytes: approximate size of the files per shard; a compressed file is never divided.
    separator: the special token that separates documents in plain text and ends each in the shards.
    num_threads, batch_bytes: do not affect the shards.
    engine: reads and encodes parts of `part_bytes` elsewhere; the shards are the same.
    reading: see `text_files.Reading`.
    """
    started = time.perf_counter()
    if separator not in tokenizer.special_tokens:
        known = ", ".join(list(tokenizer.special_tokens)[:5]) or "none"
        raise TokenizerError(
            f"the tokenizer has no special token {separator} to end documents with (it has: "
            f"{known}); name one of them, or add it with groundup tokenizer convert"
        )
    how = Reading((separator,), **reading)
    end = EndToken(id=tokenizer.special_tokens[separator], text=separator)
    provenance: dict[str, Any] = {
        "dtype": "uint16" if tokenizer.id_type.itemsize == 2 else "uint32",
        "vocab_size": tokenizer.vocab_size,
        "tokenizer": tokenizer.id,
        "end": end.model_dump(),
        "settings": {
            "validation_fraction": float(validation_fraction),
            "shard_bytes": shard_bytes,
            "errors": how.errors,
            "separators": [separator],
            "field": how.field,
            **({"encoding": how.encoding} if how.encoding else {}),
        },
    }
    sources = find_sources(inputs, how)
    num_threads = num_threads or num_cores()
    batch_bytes = batch_bytes or max(_BATCH_BYTES, num_threads * _BATCH_BYTES_PER_THREAD)
    encoder = PartEncoder(tokenizer, end.id, how, 1 if engine else num_threads, batch_bytes)
    folder = Path(out)
    index_path = folder / INDEX_NAME
    try:
        disk.make_folder(folder)
    except FileExistsError:
        raise DataError(f"{folder} is a file; name a folder for the shards") from None
    with locked(folder) as is_ours:
        if not is_ours:
            raise DataError(f"another process is writing to {folder}; wait until it finishes")
        remove_leftovers(folder)
        if overwrite:
            # Even a damaged index most likely still names its format.
            if index_path.is_file() and FORMAT.encode() not in index_path.read_bytes():
                raise DataError(f"{index_path} is not an index of shards; choose another folder")
            # Remove the index first, so that the folder no longer counts as finished.
            disk.remove(index_path)
            disk.sync(folder)
            _remove_all_but(folder, ())
        elif os.path.lexists(index_path):
            index = _check_finished(folder, provenance, sources)
            _remove_all_but(folder, (shard.file for shard in index.shards))
            return PrepareSummary(folder, index, "up to date", 0, time.perf_counter() - started)
        parts = cut_into_parts(sources, shard_bytes, how, max_sources=1 << 40)
        work = _Preparing(folder, provenance, encoder, parts)
        num_kept = work.resume()
        work.run(engine, part_bytes, progress)
        index = work.finish(end)
    outcome: Literal["resumed", "written"] = "resumed" if num_kept else "written"
    return PrepareSummary(folder, index, outcome, work.num_bytes, time.perf_counter() - started)


class _Preparing:
    """One run of `prepare`; each part becomes a shard."""

    def __init__(
        self, folder: Path, provenance: dict[str, Any], encoder: PartEncoder, parts: list[Part]
    ) -> None:
        self._folder, self._encoder, self._parts = folder, encoder, parts
        self._provenance = provenance
        self._fraction = provenance["settings"]["validation_fraction"]
        self._dtype = np.dtype(provenance["dtype"]).newbyteorder("<")
        self._done: list[Sidecar] = []
        self.num_bytes = 0

    def resume(self) -> int:
        """Keep the first shards that are intact and match the parts; returns their number."""
        for number, part in enumerate(self._parts):
            try:
                sidecar = read_record(self._sidecar(number), Sidecar)
                for entry in sidecar.shards.values():
                    check_hash(self._folder, entry, self._dtype.itemsize)
            except (DataError, OSError):
                break
            is_same = (sidecar.provenance, sidecar.part) == (self._provenance, describe_part(part))
            if not is_same or any(source.stamp is None for source in part.sources):
                break
            self._done.append(sidecar)
        kept = [self._sidecar(number).name for number in range(len(self._done))]
        kept += [shard.file for one in self._done for shard in one.shards.values()]
        _remove_all_but(self._folder, kept)
        return len(self._done)

    def run(self, engine: Engine | None, part_bytes: int, progress: Progress | None) -> None:
        """Write the remaining shards."""
        total = sum(part.num_bytes for part in self._parts) or None
        items = self._encode(engine, part_bytes)
        with (
            contextlib.closing(items),
            read_ahead(items, _DEPTH) as ready,
            contextlib.ExitStack() as files,
        ):
            writer: ShardWriter | None = None
            for number, done, item in ready:
                if writer is None:
                    writer = ShardWriter(self._folder, number, self._dtype, self._fraction)
                    files.callback(writer.close)
                if item is not None:
                    writer.write(item)
                    self.num_bytes += int(item.lengths.sum())
                else:
                    self._finish_shard(number, writer)
                    writer = None
                if progress is not None:
                    progress(done, total)

    def finish(self, end: EndToken) -> ShardIndex:
        """Write the index, which makes the folder finished."""
        splits: dict[Split, list[ShardEntry]] = {
            split: [one.shards[split] for one in self._done if split in one.shards]
            for split in SPLITS
        }
        if not splits["train"] and not splits["validation"]:
            sources = [source for part in self._parts for source in part.sources]
            raise no_text_error(sources, self._encoder.reading)
        if self._fraction and not splits["validation"]:
            self._split_off_tail(splits, end)
        index = ShardIndex(
            **{**self._provenance, "end": end},
            splits={split: SplitEntry.of(shards) for split, shards in splits.items()},
            sources=join_sources(one.sources for one in self._done),
        )
        # The shards' directory entries must be durable before the index that refers to them.
        disk.sync(self._folder)
        write_record(self._folder / INDEX_NAME, index)
        _remove_all_but(self._folder, (shard.file for shard in index.shards))
        return index

    def _encode(
        self, engine: Engine | None, part_bytes: int
    ) -> Generator[tuple[int, int, EncodedDocuments | None], None, None]:
        """Yield shard number, bytes read so far, and documents; None at the end of each shard."""
        first, reading = len(self._done), self._encoder.reading
        done = sum(part.num_bytes for part in self._parts[:first])
        work: list[tuple[int, bool, Part]] = []
        for number, part in enumerate(self._parts[first:], first):
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
        made_of = describe_part(part)
        sidecar = Sidecar(provenance=self._provenance, part=made_of, shards=shards, sources=sources)
        write_record(self._sidecar(number), sidecar)
        self._done.append(sidecar)

    def _split_off_tail(self, splits: dict[Split, list[ShardEntry]], end: EndToken) -> None:
        """Move the end of the last training shard into a validation split.

        If interrupted, the shard no longer matches its sidecar, and a resume rewrites it.
        """
        last = splits["train"][-1]
        if last.num_tokens < 2 * _MIN_TAIL_IDS:
            return
        all_ids = sum(shard.num_tokens for shard in splits["train"])
        wanted = max(int(self._fraction * all_ids), min(all_ids // 10, _SMALL_TAIL_IDS))
        path = self._folder / last.file
        ids = np.memmap(path, self._dtype, "r")
        cut = len(ids) - min(max(wanted, _MIN_TAIL_IDS), len(ids) // 2)
        tail = ids[cut:]
        num_documents = int(np.count_nonzero(tail == end.id))
        num_bytes = int(token_sizes(self._encoder.tokenizer)[tail].sum())
        num_bytes -= num_documents * len(end.text.encode())
        _log.info("too few documents: validating on the last %d of %d tokens", len(tail), all_ids)
        name = last.file.replace("train", "validation")
        splits["validation"] = [write_shard(path.with_name(name), [tail], num_documents, num_bytes)]
        head = [ids[:cut], np.array([end.id], self._dtype)]
        counts = last.num_documents - num_documents + 1, last.num_bytes - num_bytes
        splits["train"][-1] = write_shard(path, head, *counts)

    def _sidecar(self, number: int) -> Path:
        return self._folder / f"shard_{number:06d}.json"


def _remove_all_but(folder: Path, kept: Iterable[str]) -> None:
    """Delete shard files, finished or not, except those to keep."""
    for name in {*os.listdir(folder)} - {*kept}:
        if _SHARD_FILES.fullmatch(name):
            disk.remove(folder / name)


def _check_finished(
    folder: Path, provenance: dict[str, Any], sources: Sequence[Source]
) -> ShardIndex:
    """Return the index of a finished folder; raises DataError if this call would write another."""
    index = read_index(folder)
    found = {**index.model_dump(include=set(provenance) - {"settings"}), **index.settings}
    wanted = {name: value for name, value in provenance.items() if name != "settings"}
    wanted |= provenance["settings"]
    if found.get("errors") == "strict":
        # There was no decoding error, so the other settings give the same shards.
        found["errors"] = wanted["errors"]
    old = [(entry.path, entry.size, entry.stamp) for entry in index.sources]
    new = [(path_text(source), source.size, source.stamp) for source in sources]
    names = ("tokenizer", *{**wanted, **found})
    different = [name for name in names if found.get(name) != wanted.get(name)]
    if different:
        name = different[0]
        reason = f"its {name} is {found.get(name)}, not {wanted.get(name)}"
    elif changed := {*old} ^ {*new} or {one for one in new if one[2] is None}:
        reason = f"{min(path for path, *_ in changed)} has changed since, or cannot be re-read"
    elif old != new:
        reason = "the order of its sources has changed"
    else:
        for shard in index.shards:
            check_shard_file(folder, shard, index.id_bytes)
        return index
    raise DataError(
        f"{folder} is finished, but {reason}; choose another folder, or use --overwrite"
    )
