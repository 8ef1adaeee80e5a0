"""Learning a vocabulary: count the pre-tokens of the text, then merge pairs, most frequent first.

Takes text as blocks of UTF-8; finding and opening files is `text_files`. The counting and merging
is the native core's.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from groundup.errors import TokenizerError
from groundup.runtime import Engine, Progress, num_cores, peak_memory_bytes
from groundup.text_files import Part, Reading, cut_into_parts, find_sources, run_parts
from groundup.tokenizer.counting import (
    MemoryBound,
    PartCounting,
    WordCounting,
    read_blocks,
)
from groundup.tokenizer.definition import (
    TokenizerDefinition,
    check_special_token_texts,
    count_merges,
    encode_special_token,
)
from groundup.tokenizer.inspection import find_longest_tokens
from groundup.tokenizer.native import as_array
from groundup.tokenizer.patterns import GPT2, Pattern, find_pattern
from groundup.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MAX_THREADS = 1_024
_PART_BYTES = 64 << 20
# Enough for each core to be busy for a while, in memory that is small beside the counts.
_BLOCK_BYTES_PER_CORE = 2 << 20


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
        options: `pattern`, `num_threads`, `max_memory_bytes`, `progress`, and those of
            `text_files.Reading`.
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
    max_memory_bytes: int | None = None,
    progress: Progress | None = None,
    engine: Engine | None = None,
    part_bytes: int = _PART_BYTES,
    **reading: Any,
) -> tuple[Tokenizer, TrainingSummary]:
    """Train on files, folders or globs.

    input_path: one of them, or several.
    vocab_size: the 256 bytes, the merges and the special tokens together.
    special_tokens: texts that stay whole; documents are cut there.
    pattern: how text is split into pre-tokens, by name or as a regular expression.
    num_threads: all cores if None.
    max_memory_bytes, progress: see `train_tokenizer`.
    engine: counts parts of the text elsewhere, each in memory of that bound; the result is the
        same.
    part_bytes: about how much text such a part has.
    reading: further arguments of `text_files.Reading`.
    """
    inputs = [input_path] if isinstance(input_path, str | os.PathLike) else list(input_path)
    texts = check_special_token_texts(special_tokens)
    pattern = find_pattern(pattern)
    memory = MemoryBound(max_memory_bytes)
    block_bytes = reading.pop("block_bytes", None)
    how = Reading(tuple(texts), **reading)

    def count(counting: WordCounting) -> None:
        sources = find_sources(inputs, how.errors)
        if engine is None:
            size = memory.block_bytes if max_memory_bytes else num_cores() * _BLOCK_BYTES_PER_CORE
            part = Part(tuple(sources))
            blocks = read_blocks(part, pattern, texts, memory, how, block_bytes or size)
            for block, num_bytes in blocks:
                counting.add(block, progress, num_bytes)
            return
        parts = cut_into_parts(sources, part_bytes, how)
        counter = PartCounting(pattern, texts, max_memory_bytes, how, block_bytes)
        for num_bytes, words in run_parts(engine, counter, parts, progress):
            counting.merge(num_bytes, words)

    return _train(count, vocab_size, texts, pattern, num_threads, max_memory_bytes)


def train_tokenizer(
    blocks: Iterable[Buffer],
    vocab_size: int,
    special_tokens: Sequence[str],
    *,
    pattern: Pattern = GPT2,
    num_threads: int | None = None,
    max_memory_bytes: int | None = None,
    progress: Progress | None = None,
) -> tuple[Tokenizer, TrainingSummary]:
    """Train on blocks of UTF-8 text, each ending where a document ends.

    blocks: the text.
    vocab_size, special_tokens, pattern, num_threads: see `train_from_files`.
    max_memory_bytes: what training may take besides what the process holds already. The counts go
        to sorted runs on disk whenever they outgrow their part of it, and are merged back at the
        end; the result does not change. What does not fit is refused before it is taken.
    progress: called with the bytes counted so far.
    """

    def count(counting: WordCounting) -> None:
        for block in blocks:
            counting.add(block, progress)

    texts = check_special_token_texts(special_tokens)
    return _train(count, vocab_size, texts, pattern, num_threads, max_memory_bytes)


def _train(
    count: Callable[[WordCounting], None],
    vocab_size: int,
    texts: list[str],
    pattern: Pattern,
    num_threads: int | None,
    max_memory_bytes: int | None,
) -> tuple[Tokenizer, TrainingSummary]:
    """Let `count` count the text, then merge."""
    num_merges = count_merges(vocab_size, len(texts))
    if num_threads is not None and not 1 <= num_threads <= _MAX_THREADS:
        raise TokenizerError(f"num_threads is {num_threads}; it must be from 1 to {_MAX_THREADS}")
    memory = MemoryBound(max_memory_bytes)
    threads = min(num_threads or num_cores(), memory.most_threads)
    phases: list[tuple[str, float, int]] = []
    with tempfile.TemporaryDirectory(prefix="groundup-counts-") as folder:
        started = time.perf_counter()
        counting = WordCounting(pattern, texts, threads, memory, Path(folder))
        count(counting)
        phases.append(("counting", time.perf_counter() - started, peak_memory_bytes()))
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
