"""Files to shards: documents are read ahead, encoded by all cores, and written behind.

The shards depend on sources, tokenizer and settings alone: not on threads, batches or kills. A
document goes to the validation split by its own hash, so it stays there when files are added.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from groundup._native import WordCounter
from groundup.data.counter_random import check_seed
from groundup.data.pipeline import WriteBehind, read_ahead
from groundup.data.prepare import shuffling
from groundup.data.prepare.corpus_writer import CorpusWriter, EncodedDocuments
from groundup.data.prepare.folder import claim_folder, open_journal
from groundup.data.prepare.journal import Journal, ShardIdentity
from groundup.data.prepare.shuffling import Mix
from groundup.data.prepare.sources import SkippedDocuments, SourceBatch, read_sources, stamp
from groundup.data.shards.check import token_sizes
from groundup.data.shards.index import EndToken, PrepareSettings, ShardIndex
from groundup.errors import ConfigError, DataError, TokenizerError
from groundup.runtime import Progress, num_cores
from groundup.text_files import END_OF_TEXT, OnError, Source, expand_inputs
from groundup.text_files.documents import Errors, check_error_handling
from groundup.text_files.encodings import check_encoding
from groundup.text_files.opening import release_pages

if TYPE_CHECKING:
    from groundup.tokenizer import Tokenizer

_BATCH_BYTES = 8 << 20
_BATCH_BYTES_PER_THREAD = 2 << 20
_DEPTH = 2
# A document of more batches than this is encoded in parts.
_LONG_BATCHES = 4
# Regular expressions make an object of every pre-token.
_LONGEST_BY_REGEX = 256 << 20


@dataclass(frozen=True)
class PrepareSummary:
    """What was done: `outcome` says how, `num_bytes` how much text this process encoded."""

    folder: Path
    index: ShardIndex
    outcome: Literal["written", "resumed", "up to date"]
    num_bytes: int
    seconds: float
    mix: dict[str, tuple[int, float]] | None = None
    """Of each text that was mixed now: its bytes, and the fraction of it that was taken."""


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
    shuffle_documents: int | None = None,
    mix: Mapping[str, float] | None = None,
    on_error: OnError = "stop",
    num_threads: int | None = None,
    batch_bytes: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
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
    shuffle_documents: the seed of a random order of all documents; without it, that of the sources.
        The text lies once more beside the shards meanwhile, and a kill begins again.
    mix: inputs with weights, instead of `inputs`: of each, documents are chosen at random so that
        the bytes of text have these ratios, all of the input that there is too little of. The
        documents are shuffled.
    on_error: "skip" leaves files that cannot be read, or no further, names them in a warning and
        notes them in the index.
    num_threads, batch_bytes: how much is encoded at once; the shards do not depend on it.
    overwrite: replace a finished folder of something else. Without it an unfinished folder is
        continued, and a finished one is left alone if it came from the same, and refused otherwise.
    progress: called with the bytes read so far and their total, or None where that is unknown.
    """
    started = time.perf_counter()
    if num_threads is not None and num_threads < 1:
        raise ConfigError(f"num_threads is {num_threads}; it must be at least 1")
    num_threads = num_threads or num_cores()
    check_error_handling(errors, on_error)
    check_encoding(encoding)
    if mix and inputs:
        raise ConfigError("name the inputs in --mix, or without weights, not both ways at once")
    if mix and shuffle_documents is None:
        shuffle_documents = 0
    if shuffle_documents is not None:
        check_seed(shuffle_documents)
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
            shuffle_documents=shuffle_documents,
            mix=[f"{name}={weight:g}" for name, weight in mix.items()] if mix else None,
        ),
    )
    mixture = Mix(mix, [expand_inputs([name], on_error) for name in mix]) if mix else None
    texts = [expand_inputs(inputs, on_error)] if mixture is None else mixture.sources
    sources = [source for text in texts for source in text]
    with claim_folder(Path(out)) as folder:
        opened = open_journal(folder, identity, sources, on_error=on_error, overwrite=overwrite)
        if isinstance(opened, ShardIndex):
            seconds = time.perf_counter() - started
            return PrepareSummary(folder, opened, "up to date", 0, seconds)
        batch_bytes = batch_bytes or max(_BATCH_BYTES, num_threads * _BATCH_BYTES_PER_THREAD)
        work = _Preparing(tokenizer, identity, sources, on_error, num_threads, batch_bytes, mixture)
        index = work.run(folder, opened, progress)
    is_new = opened == Journal(identity=identity)
    outcome: Literal["written", "resumed"] = "written" if is_new else "resumed"
    seconds = time.perf_counter() - started
    taken = None if mixture is None else mixture.taken
    return PrepareSummary(folder, index, outcome, work.num_bytes, seconds, taken)


@dataclass
class _Preparing:
    """One run over the sources, from where the journal left off."""

    tokenizer: "Tokenizer"
    identity: ShardIdentity
    sources: list[Source]
    on_error: OnError
    num_threads: int
    batch_bytes: int
    mix: Mix | None
    num_bytes: int = 0
    """How much text has been encoded."""
    cutter: WordCounter | None = None

    def run(self, folder: Path, journal: Journal, progress: Progress | None) -> ShardIndex:
        sizes = [stamp(source, self.on_error)[0] for source in self.sources]
        total = None if None in sizes else sum(size or 0 for size in sizes)
        batches = read_sources(
            self.sources, self.identity.settings, self.batch_bytes, journal.position, self.on_error
        )
        writer = CorpusWriter(folder, journal)
        seed = self.identity.settings.shuffle_documents
        if seed is not None:
            whole = cast(Iterator[SourceBatch], batches)
            batches = shuffling.shuffle_documents(
                whole, folder, seed, self.mix, writer.note_sources, self.batch_bytes, total
            )
        behind = WriteBehind(writer.write, _DEPTH)
        try:
            with read_ahead(batches, _DEPTH) as items:
                for item in items:
                    if isinstance(item, SkippedDocuments):
                        behind.put(item)
                        continue
                    for documents in self._encode(item):
                        behind.put(documents)
                    # Reading ahead, nobody else knows when.
                    release_pages(item.data)
                    if progress is not None:
                        progress(item.done, total)
            behind.finish()
            index = writer.finish(token_sizes(self.tokenizer))
        except BaseException:
            behind.close()
            if behind.error is None:
                writer.save_journal()
            raise
        finally:
            writer.close()
        if progress is not None and total is not None:
            progress(total, total)
        return index

    def _encode(self, batch: SourceBatch) -> Iterator[EncodedDocuments]:
        bounds, hashes = batch.bounds, batch.hashes
        lengths = bounds[:, 1] - bounds[:, 0]
        self.num_bytes += int(lengths.sum())
        long_rows = np.flatnonzero(lengths > _LONG_BATCHES * self.batch_bytes).tolist()
        begin = 0
        for row in long_rows:
            yield self._encode_rows(batch, lengths, begin, row)
            text = memoryview(batch.data)[bounds[row, 0] : bounds[row, 1]]
            yield from self._encode_long(text, hashes[row : row + 1])
            begin = row + 1
        # Only small batches hold ends of sources, and those have no long documents.
        rest = self._encode_rows(batch, lengths, begin, len(bounds))
        yield replace(rest, ends=batch.ends)

    def _encode_rows(
        self, batch: SourceBatch, lengths: npt.NDArray[np.int64], begin: int, end: int
    ) -> EncodedDocuments:
        ids, offsets = self._encode_documents(
            batch.data, batch.bounds[begin:end], self.identity.end.id
        )
        return EncodedDocuments(ids, offsets, batch.hashes[begin:end], lengths[begin:end])

    def _encode_long(
        self, text: memoryview, hashes: npt.NDArray[np.uint64]
    ) -> Iterator[EncodedDocuments]:
        """A document too long to be held twice, in parts cut where no token can cross."""
        if not self.tokenizer.pattern.native and len(text) > _LONGEST_BY_REGEX:
            raise DataError(
                f"a document of {len(text):,} bytes is too long for the split pattern "
                f"{self.tokenizer.pattern.name}, which takes documents whole, of at most "
                f"{_LONGEST_BY_REGEX:,} bytes; put separators into it"
            )
        window = _LONG_BATCHES * self.batch_bytes
        while text:
            ids, used = self._encode_beginning(text[:window], is_whole=len(text) <= window)
            if not used:
                window *= 2
                continue
            is_whole = used == len(text)
            offsets = np.array([0, len(ids)], np.int64)
            lengths = np.array([used], np.int64)
            yield EncodedDocuments(ids, offsets, hashes, lengths, is_whole=is_whole)
            release_pages(text[:used])
            text, window = text[used:], _LONG_BATCHES * self.batch_bytes

    def _encode_beginning(
        self, text: memoryview, *, is_whole: bool
    ) -> tuple[npt.NDArray[Any], int]:
        """The ids of a beginning of `text` that holds whatever follows, and its length."""
        cut = self._find_cut(text)
        if cut == len(text) and not is_whole:
            # One pre-token, or almost: then it is cut inside.
            return self.tokenizer.encode_beginning(text)
        end_id = self.identity.end.id if cut == len(text) else None
        bounds = np.array([[0, cut]], np.int64)
        ids, _ = self._encode_documents(text, bounds, end_id)
        return ids, cut

    def _encode_documents(
        self, data: bytes | memoryview, bounds: npt.NDArray[np.int64], end_id: int | None
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        try:
            return self.tokenizer.encode_documents(data, bounds, self.num_threads, end_id)
        except ValueError as error:
            # A pre-token that these merges cannot take in parts.
            raise TokenizerError(str(error)) from None

    def _find_cut(self, text: memoryview) -> int:
        if len(text) < 2 * self.batch_bytes or not self.tokenizer.pattern.native:
            return len(text)
        if self.cutter is None:
            special_tokens = [token.encode() for token in self.tokenizer.special_tokens]
            self.cutter = WordCounter(self.tokenizer.pattern.name, special_tokens, 1)
        return self.cutter.find_cut(text, self.batch_bytes)


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
