"""Files to shards: documents are read ahead, encoded by all cores, and written behind.

The shards depend on sources, tokenizer and settings alone: not on threads, batches or kills. A
document goes to the validation split by its own hash, so it stays there when files are added.
"""

import os
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from groundup.data.pipeline import WriteBehind, read_ahead
from groundup.data.prepare.corpus_writer import CorpusWriter
from groundup.data.prepare.document_encoder import DocumentEncoder, PartEncoder
from groundup.data.prepare.encoded_documents import EncodedDocuments
from groundup.data.prepare.folder import claim_folder, open_journal
from groundup.data.prepare.journal import Journal, Position, ShardIdentity
from groundup.data.prepare.sources import (
    SkippedDocuments,
    Stamp,
    check_unchanged,
    path_text,
    read_sources,
    stamp,
)
from groundup.data.shards.check import token_sizes
from groundup.data.shards.index import EndToken, PrepareSettings, ShardIndex
from groundup.errors import ConfigError, TokenizerError
from groundup.runtime import Engine, Progress, num_cores
from groundup.text_files import END_OF_TEXT, OnError, Source, cut_into_parts, expand_inputs
from groundup.text_files.documents import Errors, check_error_handling
from groundup.text_files.encodings import check_encoding
from groundup.text_files.opening import release_pages

if TYPE_CHECKING:
    from groundup.tokenizer import Tokenizer

_BATCH_BYTES = 8 << 20
_BATCH_BYTES_PER_THREAD = 2 << 20
_DEPTH = 2
_PART_BYTES = 32 << 20

_Items = Generator[tuple[int, EncodedDocuments | SkippedDocuments], None, None]


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
    shard_ids: int = 100_000_000,
    separator: str = END_OF_TEXT,
    field: str = "text",
    column: str = "text",
    errors: Errors = "strict",
    encoding: str | None = None,
    on_error: OnError = "stop",
    num_threads: int | None = None,
    batch_bytes: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    engine: Engine | None = None,
    part_bytes: int = _PART_BYTES,
) -> PrepareSummary:
    """Encode the documents of files, folders or globs into shards in the folder `out`.

    inputs: files, folders and globs, or "-" for standard input.
    tokenizer: what encodes; it must know `separator` as a special token.
    out: the folder for the shards and their index.
    validation_fraction: fraction of the documents for validation, chosen by their hashes. Where
        they are so few that none is chosen, the end of the text is taken, a tenth of a small one.
    shard_ids: a shard is complete with the document that brings it to this many ids.
    separator: the special token between documents of plain text, which ends each one in the shards.
    field, column: where the text is in a record of JSON lines or CSV, and in a Parquet file.
    errors: what to do with text that is not UTF-8: stop, put U+FFFD, or leave the document out.
    encoding: of files that are not UTF-8.
    on_error: "skip" leaves files that cannot be read, or no further, names them in a warning and
        notes them in the index.
    num_threads, batch_bytes: how much is encoded at once; the shards do not depend on it.
    overwrite: replace a finished folder of something else. Without it an unfinished folder is
        continued, and a finished one is left alone if it came from the same, and refused otherwise.
    progress: called with the bytes read so far and their total, or None where that is unknown.
    engine: reads and encodes parts of the text elsewhere; the shards are the same.
    part_bytes: about how much text such a part has.
    """
    started = time.perf_counter()
    if num_threads is not None and num_threads < 1:
        raise ConfigError(f"num_threads is {num_threads}; it must be at least 1")
    num_threads = num_threads or num_cores()
    check_error_handling(errors, on_error)
    check_encoding(encoding)
    identity = _identify(
        tokenizer,
        separator,
        PrepareSettings(
            validation_fraction=float(validation_fraction),
            shard_ids=shard_ids,
            errors=errors,
            separators=[separator],
            field=field,
            column=column,
            encoding=encoding,
        ),
    )
    sources = expand_inputs(inputs, on_error)
    with claim_folder(Path(out)) as folder:
        opened = open_journal(folder, identity, sources, on_error=on_error, overwrite=overwrite)
        if isinstance(opened, ShardIndex):
            seconds = time.perf_counter() - started
            return PrepareSummary(folder, opened, "up to date", 0, seconds)
        batch_bytes = batch_bytes or max(_BATCH_BYTES, num_threads * _BATCH_BYTES_PER_THREAD)
        encoder = DocumentEncoder(tokenizer, identity.end.id, num_threads, batch_bytes)
        if engine is not None:
            encoder = replace(encoder, num_threads=1)
        work = _Preparing(encoder, identity, sources, on_error, engine, part_bytes, progress)
        index = work.run(folder, opened)
    is_new = opened == Journal(identity=identity)
    outcome: Literal["written", "resumed"] = "written" if is_new else "resumed"
    seconds = time.perf_counter() - started
    return PrepareSummary(folder, index, outcome, work.num_bytes, seconds)


@dataclass
class _Preparing:
    """One run over the sources, from where the journal left off."""

    encoder: DocumentEncoder
    identity: ShardIdentity
    sources: list[Source]
    on_error: OnError
    engine: Engine | None
    part_bytes: int
    progress: Progress | None
    num_bytes: int = 0
    """How much text has been encoded."""

    def run(self, folder: Path, journal: Journal) -> ShardIndex:
        stamps = [stamp(source, self.on_error) for source in self.sources]
        sizes = [size for size, _ in stamps]
        total = None if None in sizes else sum(size or 0 for size in sizes)
        writer = CorpusWriter(folder, journal)
        behind = WriteBehind(writer.write, _DEPTH)
        if self.engine is None:
            items = self._encode_here(journal.position)
        else:
            items = self._encode_elsewhere(self.engine, journal.position, stamps)
        try:
            for done, item in items:
                if isinstance(item, EncodedDocuments):
                    self.num_bytes += int(item.lengths.sum())
                behind.put(item)
                if self.progress is not None:
                    self.progress(done, total)
            behind.finish()
            index = writer.finish(token_sizes(self.encoder.tokenizer))
        except BaseException:
            behind.close()
            if behind.error is None:
                writer.save_journal()
            raise
        finally:
            items.close()
            writer.close()
        if self.progress is not None and total is not None:
            self.progress(total, total)
        return index

    def _encode_here(self, position: Position) -> _Items:
        """Yield how much of the files has been read, and documents, in order."""
        batch_bytes = self.encoder.batch_bytes
        settings = self.identity.settings
        done = 0
        batches = read_sources(self.sources, settings, batch_bytes, position, self.on_error)
        with read_ahead(batches, _DEPTH) as items:
            for item in items:
                if isinstance(item, SkippedDocuments):
                    yield done, item
                    continue
                done = item.done
                for documents in self.encoder.encode(item):
                    yield done, documents
                # Reading ahead, nobody else knows when.
                release_pages(item.data)

    def _encode_elsewhere(self, engine: Engine, position: Position, stamps: list[Stamp]) -> _Items:
        """The same from parts that are read and encoded by an engine."""
        settings = self.identity.settings
        number = len(position.finished)
        known = dict(zip(map(path_text, self.sources), stamps, strict=True))
        parts = cut_into_parts(
            self.sources[number:],
            self.part_bytes,
            separators=settings.separators,
            encoding=settings.encoding,
            on_error=self.on_error,
        )
        done = sum(entry.size or 0 for entry in position.finished)
        to_skip = position.num_documents
        encoder = PartEncoder(self.encoder, settings, self.on_error)
        for part, items in zip(parts, engine(encoder, parts), strict=True):
            for read, documents in items:
                for _, end in documents.ends if part.span is not None else ():
                    check_unchanged(end, known[end.path])
                if to_skip:
                    path = path_text(self.sources[number])
                    skipped, documents = documents.skip(to_skip, path)
                    to_skip -= len(skipped.hashes)
                    yield done, skipped
                yield done + min(read, part.num_bytes), documents
            done += part.num_bytes


def _identify(tokenizer: "Tokenizer", separator: str, settings: PrepareSettings) -> ShardIdentity:
    if not 0 <= settings.validation_fraction < 1:
        raise ConfigError(
            f"validation_fraction is {settings.validation_fraction:g}; it must be at least 0 and "
            f"less than 1"
        )
    if settings.shard_ids < 1:
        raise ConfigError(f"shard_ids is {settings.shard_ids}; it must be at least 1")
    if separator not in tokenizer.special_tokens:
        known = ", ".join(list(tokenizer.special_tokens)[:5]) or "none"
        raise TokenizerError(
            f"the tokenizer has no special token {separator} to end documents with (it has: "
            f"{known}); name one of them as the separator, or add it with --special-token"
        )
    return ShardIdentity(
        dtype="uint16" if tokenizer.id_type.itemsize == 2 else "uint32",
        vocab_size=tokenizer.vocab_size,
        tokenizer=tokenizer.id,
        end=EndToken(id=tokenizer.special_tokens[separator], text=separator),
        settings=settings,
    )
