"""BPE training: count the pre-tokens of the text, then merge pairs, most frequent first.

`text_files` finds and reads the files, the native core counts and merges, and `reference` is the
same algorithm in plain Python.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np

from groundup.errors import DataError, TokenizerError, check_argument_names
from groundup.runtime import Engine, Progress, num_cores
from groundup.text_files import Part, Reading, cut_into_parts, find_sources, read, run_parts
from groundup.text_files.documents import Errors, FindCut
from groundup.tokenizer.definition import (
    TokenizerDefinition,
    check_special_token_texts,
    count_merges,
    encode_special_token,
)
from groundup.tokenizer.native import WordCounter, as_array
from groundup.tokenizer.patterns import GPT2, Pattern, find_pattern, superword_pattern

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MAX_THREADS = 1_024
# Text read per core and block: enough to keep it busy, small next to the memory of the counts.
_BLOCK_BYTES_PER_CORE = 2 << 20
# A longer pre-token is hardly text, and needs 24 times its size in memory.
_MAX_WORD_BYTES = 64 << 20
# Text counted into one table of `PartCounting`.
_TABLE_TEXT_BYTES = 256 << 20


Inputs = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""One or more files, folders or globs."""


class TrainingOptions(TypedDict, total=False):
    """Training options: split pattern, SuperBPE, threads, and those of `text_files.Reading`."""

    pattern: str | Pattern
    superbpe_from: int | None
    num_threads: int | None
    progress: Progress | None
    field: str
    encoding: str | None
    errors: Errors
    follow_links: bool
    drop_duplicates: bool


@dataclass(frozen=True)
class TrainingSummary:
    """Statistics of a training run, printed at its end."""

    num_bytes: int
    num_words: int
    vocab_size_requested: int
    vocab_size_reached: int
    longest_tokens: tuple[bytes, ...]
    bytes_per_token: float


def bytes_per_token(num_bytes: int, num_tokens: int) -> float:
    """Return UTF-8 bytes per token; document separators count in neither."""
    return num_bytes / max(1, num_tokens)


def train_bpe(
    input_path: Inputs,
    vocab_size: int,
    special_tokens: Sequence[str],
    **options: Unpack[TrainingOptions],
) -> tuple[dict[int, bytes], list[tuple[bytes, bytes]]]:
    """Train byte-level BPE; return the vocabulary {id: token} and the merges in order.

    `vocab_size` counts the 256 bytes, the merges and the special tokens, which get the last ids.
    The most frequent pair is merged first; ties go to the lexicographically greater pair of byte
    strings. Merges never cross pre-tokens or special tokens. With `superbpe_from` (SuperBPE), only
    that many merges stay within pre-tokens; later ones stay within lines, and tokens have up to
    four words. The result does not depend on the number of threads.
    """
    learned, _ = train_from_files(input_path, vocab_size, special_tokens, **options)
    return learned.vocab, learned.merges


def train_from_files(
    input_path: Inputs,
    vocab_size: int,
    special_tokens: Sequence[str],
    *,
    pattern: str | Pattern = GPT2,
    superbpe_from: int | None = None,
    num_threads: int | None = None,
    progress: Progress | None = None,
    engine: Engine | None = None,
    part_bytes: int = 64 << 20,
    block_bytes: int | None = None,
    **reading: Any,
) -> tuple[TokenizerDefinition, TrainingSummary]:
    """Train on files, folders or globs; an `engine` counts parts of the text in other processes."""
    inputs = [input_path] if isinstance(input_path, str | os.PathLike) else list(input_path)
    texts = check_special_token_texts(special_tokens)
    num_merges = count_merges(vocab_size, len(texts))
    check_argument_names(reading, TrainingOptions.__annotations__)
    how = Reading(tuple(texts), **reading)
    block_bytes = block_bytes or num_cores() * _BLOCK_BYTES_PER_CORE
    pattern = find_pattern(pattern)
    within = None if superbpe_from is None else pattern
    if superbpe_from is not None:
        if superbpe_from < 1:
            raise TokenizerError(f"superbpe_from is {superbpe_from}; it must be at least 1 merge")
        pattern = superword_pattern(pattern)
    count_part = PartCounting(pattern, texts, how, block_bytes)
    counting = WordCounting(pattern, texts, num_threads)
    sources = find_sources(inputs, how)
    if engine is None:
        for block, num_bytes in count_part.blocks(Part(tuple(sources))):
            counting.add(block, progress, num_bytes)
    else:
        parts = cut_into_parts(sources, part_bytes, how)
        for num_bytes, words in run_parts(engine, count_part, parts, progress):
            counting.merge(num_bytes, words)
    return counting.learn(num_merges, within, superbpe_from or 0)


class WordCounting:
    """Counts pre-tokens and learns merges from the counts."""

    def __init__(
        self, pattern: Pattern, special_tokens: list[str], num_threads: int | None
    ) -> None:
        if num_threads is not None and not 1 <= num_threads <= _MAX_THREADS:
            raise TokenizerError(f"num_threads is {num_threads}; it must be 1 to {_MAX_THREADS}")
        self._pattern = pattern
        self._special_tokens = special_tokens
        self.num_bytes = 0
        tokens = [encode_special_token(text) for text in special_tokens]
        self.counter = WordCounter(
            pattern.splitter, tokens, num_threads or num_cores(), _MAX_WORD_BYTES
        )

    def add(
        self, block: Buffer, progress: Progress | None = None, num_bytes: int | None = None
    ) -> None:
        """Count a block; `num_bytes` is the total of its documents, by default the whole block."""
        text = memoryview(block).cast("B")
        try:
            self.counter.add_text(text)
        except ValueError as error:
            raise TokenizerError(f"{error}; split it up or remove it") from None
        self.num_bytes += len(text) if num_bytes is None else num_bytes
        if progress:
            progress(self.num_bytes, None)

    def merge(self, num_bytes: int, words: Mapping[bytes, int]) -> None:
        """Add counts from another process."""
        self.counter.add_words(list(words), list(words.values()))
        self.num_bytes += num_bytes

    def learn(
        self, num_merges: int, within: Pattern | None = None, superbpe_from: int = 0
    ) -> tuple[TokenizerDefinition, TrainingSummary]:
        """Learn `num_merges` merges, the first `superbpe_from` of them inside the pre-tokens of
        `within`, if given."""
        splitter = None if within is None else within.splitter
        try:
            packed, num_bytes, num_symbols, num_words = self.counter.train(
                num_merges, splitter, superbpe_from
            )
        except ValueError as error:
            raise TokenizerError(str(error)) from None
        tokens = [bytes([byte]) for byte in range(256)]
        merges: list[tuple[bytes, bytes]] = []
        for left, right in as_array(packed, np.uint32).reshape(-1, 2).tolist():
            merges.append((tokens[left], tokens[right]))
            tokens.append(tokens[left] + tokens[right])
        vocab = dict(
            enumerate(tokens + [encode_special_token(one) for one in self._special_tokens])
        )
        ids = {text: id for id, text in enumerate(self._special_tokens, len(tokens))}
        trained_on: dict[str, Any] = {"num_bytes": self.num_bytes, "num_words": num_words}
        if within is not None:
            trained_on |= {"superbpe_from": superbpe_from, "words": list(within.stages)}
        lineage = {"trained_on": trained_on}
        definition = TokenizerDefinition(vocab, merges, ids, self._pattern, lineage=lineage)
        summary = TrainingSummary(
            num_bytes=self.num_bytes,
            num_words=num_words,
            vocab_size_requested=256 + num_merges + len(ids),
            vocab_size_reached=len(vocab),
            longest_tokens=tuple(sorted(tokens, key=lambda token: (-len(token), token))[:10]),
            bytes_per_token=bytes_per_token(num_bytes, num_symbols),
        )
        return definition, summary


@dataclass(frozen=True)
class PartCounting:
    """Counts the pre-tokens of one part of a corpus; can be sent to another process."""

    pattern: Pattern
    special_tokens: list[str]
    reading: Reading
    block_bytes: int

    def __call__(self, part: Part) -> Iterator[tuple[int, dict[bytes, int]]]:
        """Yield tables of bounded size: (bytes counted, {pre-token: count})."""
        counting = WordCounting(self.pattern, self.special_tokens, 1)
        for block, num_bytes in self.blocks(part):
            counting.add(block, None, num_bytes)
            if counting.num_bytes >= _TABLE_TEXT_BYTES:
                yield counting.num_bytes, counting.counter.items()
                counting = WordCounting(self.pattern, self.special_tokens, 1)
        yield counting.num_bytes, counting.counter.items()

    def blocks(self, part: Part) -> Iterator[tuple[bytes | memoryview, int]]:
        """Yield blocks that can be counted independently, each with its bytes of documents."""
        size = self.block_bytes
        counter = WordCounting(self.pattern, self.special_tokens, 1).counter
        find_cut = cut_finder(counter, max(_MAX_WORD_BYTES, size))
        for batch in read(
            part, self.reading, batch_bytes=size, find_cut=find_cut, piece_bytes=size
        ):
            if self.special_tokens:
                yield batch.data, int((batch.bounds[:, 1] - batch.bounds[:, 0]).sum())
            else:
                view = memoryview(batch.data)
                yield from ((view[begin:end], end - begin) for begin, end in batch.bounds.tolist())


def cut_finder(counter: WordCounter, max_bytes: int) -> FindCut:
    """Return a function that finds the last boundary at which to cut a long document; 0 if none is
    known yet. A pre-token of more than `max_bytes` is an error."""

    def find_cut(text: memoryview) -> int:
        cut = counter.find_last_cut(text)
        if not cut and len(text) > max_bytes:
            raise DataError(f"a pre-token has more than {len(text):,} bytes; split or remove it")
        return cut

    return find_cut
