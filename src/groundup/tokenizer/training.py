"""Learning a vocabulary: count the pre-tokens of the text, then merge pairs, most frequent first.

Finding and opening files is `text_files`. The native core counts and merges; `reference` says in
plain Python what it does.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from groundup.errors import TokenizerError
from groundup.runtime import Engine, Progress, num_cores, peak_memory_bytes
from groundup.text_files import Part, Reading, cut_into_parts, find_sources, read, run_parts
from groundup.tokenizer.definition import (
    TokenizerDefinition,
    check_special_token_texts,
    count_merges,
    encode_special_token,
)
from groundup.tokenizer.inspection import find_longest_tokens
from groundup.tokenizer.native import WordCounter, as_array
from groundup.tokenizer.patterns import GPT2, Pattern, find_pattern
from groundup.tokenizer.reference import split_special_tokens
from groundup.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MAX_THREADS = 1_024
_PART_BYTES = 64 << 20
# Enough to keep each core busy for a while, in memory that is small beside the counts.
_BLOCK_BYTES_PER_CORE = 2 << 20
# How much text is counted between two calls of `progress`.
_STEP_BYTES = 64 << 20
# A longer pre-token is hardly text, and would take 24 times its size.
_LONGEST_WORD_BYTES = 64 << 20
# Text whose counts a part sends at once.
_TABLE_TEXT_BYTES = 256 << 20


@dataclass(frozen=True)
class TrainingSummary:
    """What training did, for the reader of its last lines."""

    num_bytes: int
    num_words: int
    vocab_size_requested: int
    vocab_size_reached: int
    phases: list[tuple[str, float, int]]
    longest_tokens: tuple[bytes, ...]
    bytes_per_token: float

    @property
    def ran_out_of_pairs(self) -> bool:
        return self.vocab_size_reached < self.vocab_size_requested


def train_bpe(
    input_path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    vocab_size: int,
    special_tokens: Sequence[str],
    **options: Any,
) -> tuple[dict[int, bytes], list[tuple[bytes, bytes]]]:
    """Learn a byte-level BPE vocabulary; returns the tokens by id and the merges in order.

    The 256 bytes, the merges and the special tokens make up `vocab_size`. The most frequent pair is
    merged, ties go to the lexicographically greater pair of byte strings; nothing merges
    across pre-tokens or special tokens. The result is the same for any number of threads.

    Args:
        input_path: A file, folder or glob, or several.
        vocab_size: Tokens in all.
        special_tokens: Texts that nothing merges across; they get the last ids.
        options: `pattern`, `num_threads`, `progress`, and the fields of `text_files.Reading`.
    """
    tokenizer, _ = train_from_files(input_path, vocab_size, special_tokens, **options)
    return tokenizer.vocab, tokenizer.merges


def train_from_files(
    input_path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    vocab_size: int,
    special_tokens: Sequence[str],
    *,
    pattern: str | Pattern = GPT2,
    num_threads: int | None = None,
    progress: Progress | None = None,
    engine: Engine | None = None,
    part_bytes: int = _PART_BYTES,
    block_bytes: int | None = None,
    **reading: Any,
) -> tuple[Tokenizer, TrainingSummary]:
    """Train on files, folders or globs; an `engine` counts parts of the text elsewhere."""
    inputs = [input_path] if isinstance(input_path, str | os.PathLike) else list(input_path)
    texts = check_special_token_texts(special_tokens)
    pattern = find_pattern(pattern)
    how = Reading(tuple(texts), **reading)
    block_bytes = block_bytes or num_cores() * _BLOCK_BYTES_PER_CORE

    def count(counting: WordCounting) -> None:
        sources = find_sources(inputs)
        if engine is None:
            blocks = _read_blocks(Part(tuple(sources)), pattern, texts, how, block_bytes)
            for block, num_bytes in blocks:
                counting.add(block, progress, num_bytes)
            return
        count_part = PartCounting(pattern, texts, how, block_bytes)
        parts = cut_into_parts(sources, part_bytes, how)
        for num_bytes, words in run_parts(engine, count_part, parts, progress):
            counting.merge(num_bytes, words)

    return _train(count, vocab_size, texts, pattern, num_threads)


def train_tokenizer(
    blocks: Iterable[Buffer],
    vocab_size: int,
    special_tokens: Sequence[str],
    *,
    pattern: Pattern = GPT2,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> tuple[Tokenizer, TrainingSummary]:
    """Train on blocks of UTF-8 text, each ending where a document ends."""

    def count(counting: WordCounting) -> None:
        for block in blocks:
            counting.add(block, progress)

    texts = check_special_token_texts(special_tokens)
    return _train(count, vocab_size, texts, pattern, num_threads)


class WordCounting:
    """Counts pre-tokens: natively, or through `regex` for a pattern without a native scanner."""

    def __init__(self, pattern: Pattern, special_tokens: list[str], num_threads: int) -> None:
        self._pattern = pattern
        self._special_tokens = special_tokens
        self.num_bytes = 0
        self.counter = _make_counter(pattern, special_tokens, num_threads)

    def add(
        self, block: Buffer, progress: Progress | None = None, num_bytes: int | None = None
    ) -> None:
        """Count a block; `num_bytes` is what its documents have, if not all of it."""
        view = memoryview(block).cast("B")
        before = self.num_bytes
        begin = 0
        while begin < len(view):
            rest = view[begin:]
            may_cut = self._pattern.native and len(rest) > 2 * _STEP_BYTES
            cut = self.counter.find_cut(rest, _STEP_BYTES) if may_cut else len(rest)
            self._count(rest[:cut])
            begin += cut
            if progress:
                progress(before + begin, None)
        self.num_bytes = before + (len(view) if num_bytes is None else num_bytes)

    def merge(self, num_bytes: int, words: Mapping[bytes, int]) -> None:
        """Add the counts of text that was counted elsewhere."""
        self.counter.add_words(list(words), list(words.values()))
        self.num_bytes += num_bytes

    def _count(self, text: memoryview) -> None:
        if self._pattern.native:
            try:
                self.counter.add_text(text)
            except ValueError as error:
                raise TokenizerError(f"{error}; break it up or leave it out") from None
            return
        words: Counter[str] = Counter()
        for piece, is_special in split_special_tokens(str(text, "utf-8"), self._special_tokens):
            if not is_special:
                words.update(self._pattern.split(piece))
        self.counter.add_words([word.encode() for word in words], list(words.values()))


@dataclass(frozen=True)
class PartCounting:
    """Counts the pre-tokens of a part of a corpus, in any process."""

    pattern: Pattern
    special_tokens: list[str]
    reading: Reading
    block_bytes: int

    def __call__(self, part: Part) -> Iterator[tuple[int, dict[bytes, int]]]:
        """Yield bytes counted and pre-tokens with their counts, in tables of bounded size."""
        counting = WordCounting(self.pattern, self.special_tokens, 1)
        for block, num_bytes in _read_blocks(
            part, self.pattern, self.special_tokens, self.reading, self.block_bytes
        ):
            counting.add(block, None, num_bytes)
            if counting.num_bytes >= _TABLE_TEXT_BYTES:
                yield counting.num_bytes, counting.counter.items()
                counting = WordCounting(self.pattern, self.special_tokens, 1)
        yield counting.num_bytes, counting.counter.items()


def _read_blocks(
    part: Part, pattern: Pattern, special_tokens: list[str], reading: Reading, block_bytes: int
) -> Iterator[tuple[bytes | memoryview, int]]:
    """The text in blocks that can be counted one by one, and the bytes of documents in each."""
    counter = _make_counter(pattern, special_tokens, num_threads=1)

    def find_cut(text: memoryview) -> int:
        """The last place where a document longer than a block may be cut; 0 for none yet."""
        cut = counter.find_last_cut(text) if pattern.native else 0
        if not cut and len(text) > max(_LONGEST_WORD_BYTES, block_bytes):
            kind = "pre-token" if pattern.native else "document"
            raise TokenizerError(
                f"a {kind} has more than {len(text):,} bytes; break it up or leave it out"
            )
        return cut

    for batch in read(
        part, reading, batch_bytes=block_bytes, find_cut=find_cut, piece_bytes=block_bytes
    ):
        if special_tokens:
            yield batch.data, int((batch.bounds[:, 1] - batch.bounds[:, 0]).sum())
        else:
            view = memoryview(batch.data)
            yield from ((view[begin:end], end - begin) for begin, end in batch.bounds.tolist())


def _make_counter(pattern: Pattern, special_tokens: list[str], num_threads: int) -> WordCounter:
    name = pattern.name if pattern.native else None
    tokens = [encode_special_token(text) for text in special_tokens]
    return WordCounter(name, tokens, num_threads, _LONGEST_WORD_BYTES)


def _train(
    count: Callable[[WordCounting], None],
    vocab_size: int,
    texts: list[str],
    pattern: Pattern,
    num_threads: int | None,
) -> tuple[Tokenizer, TrainingSummary]:
    """Let `count` count the text, then merge."""
    num_merges = count_merges(vocab_size, len(texts))
    if num_threads is not None and not 1 <= num_threads <= _MAX_THREADS:
        raise TokenizerError(f"num_threads is {num_threads}; it must be from 1 to {_MAX_THREADS}")
    started = time.perf_counter()
    counting = WordCounting(pattern, texts, num_threads or num_cores())
    count(counting)
    phases = [("counting", time.perf_counter() - started, peak_memory_bytes())]
    started = time.perf_counter()
    try:
        packed, num_bytes, num_symbols, num_words = counting.counter.train(num_merges)
    except ValueError as error:
        raise TokenizerError(str(error)) from None
    tokens = [bytes([byte]) for byte in range(256)]
    merges: list[tuple[bytes, bytes]] = []
    for left, right in as_array(packed, np.uint32).reshape(-1, 2).tolist():
        merges.append((tokens[left], tokens[right]))
        tokens.append(tokens[left] + tokens[right])
    phases.append(("merging", time.perf_counter() - started, peak_memory_bytes()))
    longest = find_longest_tokens(tokens)
    ids = {text: len(tokens) + index for index, text in enumerate(texts)}
    tokens += map(encode_special_token, texts)
    lineage = {"trained_on": {"num_bytes": counting.num_bytes, "num_words": num_words}}
    definition = TokenizerDefinition(dict(enumerate(tokens)), merges, ids, pattern, lineage=lineage)
    summary = TrainingSummary(
        num_bytes=counting.num_bytes,
        num_words=num_words,
        vocab_size_requested=vocab_size,
        vocab_size_reached=len(tokens),
        phases=phases,
        longest_tokens=longest,
        bytes_per_token=num_bytes / max(1, num_symbols),
    )
    return Tokenizer.from_definition(definition), summary
