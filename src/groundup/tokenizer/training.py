"""Learning a vocabulary: count the pre-tokens of the text, then merge pairs, most frequent first.

Takes text as blocks of UTF-8; finding and opening files is `text_files`. The counting and merging
is the native core's.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from groundup.errors import TokenizerError
from groundup.runtime import memory_bytes, num_cores, peak_memory_bytes
from groundup.tokenizer.definition import (
    TokenizerDefinition,
    check_special_token_texts,
    encode_special_token,
)
from groundup.tokenizer.native import WordCounter, as_array
from groundup.tokenizer.patterns import GPT2, Pattern, find_pattern
from groundup.tokenizer.reference import split_special_tokens
from groundup.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Buffer

Progress = Callable[[int, int | None], None]

# How much text is counted between two looks at the memory, the clock and the keyboard.
_STEP_BYTES = 64 << 20

_SMALLEST_RUN_BYTES = 1 << 20
# The tables of one thread while they are all but empty, and what stands around them.
_LEAST_THREAD_BYTES = 4 << 20
# Modules that are still to be loaded, and the vocabulary itself.
_PROGRAM_BYTES = 8 << 20
# A byte of a pre-token that is one letter again and again takes this much in the end.
_MERGING_BYTES = 24
# A longer pre-token is no text; who wants it nevertheless says how much memory it may take.
_LONGEST_WORD_BYTES = 64 << 20

# Beyond what any text has pairs for, and within what the native core counts in.
_MAX_VOCAB_SIZE = 2**63 - 1
_MAX_THREADS = 1_024


@dataclass(frozen=True)
class TrainingSummary:
    """What training did, for the reader of its last lines."""

    num_bytes: int
    num_words: int
    vocab_size_requested: int
    vocab_size_reached: int
    phases: list[tuple[str, float, int]]
    longest_tokens: list[bytes]
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
    across pre-tokens or special tokens. The result is the same for any number of threads. Options:
    `pattern`, `num_threads`, `max_memory_bytes`, `progress`, and those of `read_text_blocks`.
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
    **reading: Any,
) -> tuple[Tokenizer, TrainingSummary]:
    """Train on files, folders or globs; `reading` goes to `read_text_blocks`."""
    from groundup.text_files import read_text_blocks

    inputs = [input_path] if isinstance(input_path, str | os.PathLike) else list(input_path)
    texts = check_special_token_texts(special_tokens)
    pattern = find_pattern(pattern)
    memory = _Memory(max_memory_bytes)
    if max_memory_bytes is not None:
        reading.setdefault("block_bytes", memory.block_bytes)
    # Text may be cut at special tokens, since nothing merges across them, and nowhere else.
    joiner = texts[0] if texts else None
    find_cut = _Cutting(pattern, texts, memory).find_cut
    return train_tokenizer(
        read_text_blocks(inputs, separators=texts, joiner=joiner, find_cut=find_cut, **reading),
        vocab_size,
        special_tokens,
        pattern=pattern,
        num_threads=num_threads,
        max_memory_bytes=max_memory_bytes,
        progress=progress,
    )


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

    `max_memory_bytes` is what training may take besides what the process holds already. The counts
    go to sorted runs on disk whenever they outgrow their share of it, and are merged back at the
    end; the result does not change. What does not fit is refused before it is taken.
    """
    texts = check_special_token_texts(special_tokens)
    smallest = 256 + len(texts)
    if vocab_size < smallest:
        raise TokenizerError(
            f"vocab_size {vocab_size} is too small: the 256 bytes and {len(texts)} special tokens "
            f"alone take {smallest}"
        )
    if vocab_size > _MAX_VOCAB_SIZE:
        raise TokenizerError(
            f"vocab_size {vocab_size} is more than the {_MAX_VOCAB_SIZE} that 64 bits count: "
            f"choose a smaller one"
        )
    if num_threads is not None and not 1 <= num_threads <= _MAX_THREADS:
        raise TokenizerError(f"num_threads is {num_threads}; it must be from 1 to {_MAX_THREADS}")
    memory = _Memory(max_memory_bytes)
    threads = min(num_threads or num_cores(), memory.most_threads)
    phases: list[tuple[str, float, int]] = []
    with tempfile.TemporaryDirectory(prefix="groundup-counts-") as folder:
        started = time.perf_counter()
        counting = _Counting(pattern, texts, threads, memory, Path(folder))
        for block in blocks:
            counting.add(block, progress)
        runs = counting.finish()
        phases.append(("counting", time.perf_counter() - started, peak_memory_bytes()))
        started = time.perf_counter()
        try:
            packed, num_bytes, num_symbols, num_words = counting.counter.train(
                vocab_size - smallest, runs, memory.num_bytes, memory.held_bytes
            )
        except ValueError as error:
            raise TokenizerError(str(error)) from None
    tokens = [bytes([byte]) for byte in range(256)]
    merges: list[tuple[bytes, bytes]] = []
    for left, right in as_array(packed, np.uint32).reshape(-1, 2).tolist():
        merges.append((tokens[left], tokens[right]))
        tokens.append(tokens[left] + tokens[right])
    phases.append(("merging", time.perf_counter() - started, peak_memory_bytes()))
    longest = sorted(tokens, key=len, reverse=True)[:10]
    ids = {text: len(tokens) + place for place, text in enumerate(texts)}
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
        bytes_per_token=num_bytes / num_symbols if num_symbols else 0.0,
    )
    return Tokenizer.from_definition(definition), summary


class _Memory:
    """How much memory training may take, and what for."""

    def __init__(self, max_memory_bytes: int | None) -> None:
        self.is_bounded = max_memory_bytes is not None
        self.held_bytes = peak_memory_bytes()
        # Without a bound, what the machine has is one.
        machine = max(memory_bytes() - self.held_bytes, _LEAST_THREAD_BYTES)
        self.num_bytes = machine
        if max_memory_bytes is not None:
            self.held_bytes += _PROGRAM_BYTES
            self.num_bytes = max_memory_bytes - _PROGRAM_BYTES
        if self.num_bytes < _LEAST_THREAD_BYTES:
            allowed = (self.held_bytes + self.num_bytes) // 1_000_000
            least = (self.held_bytes + _LEAST_THREAD_BYTES) // 1_000_000 + 1
            raise TokenizerError(
                f"{allowed} MB are not enough: before any text is read, training takes {least} MB; "
                f"raise --max-memory"
            )

    @property
    def block_bytes(self) -> int:
        """Text that is read at once."""
        return min(max(self.num_bytes // 16, 1 << 18), 64 << 20)

    @property
    def step_bytes(self) -> int:
        """Text that is counted between two looks at the tables."""
        return min(max(self.num_bytes // 64, 1 << 16), 4 << 20) if self.is_bounded else _STEP_BYTES

    @property
    def most_threads(self) -> int:
        return max(1, self.num_bytes // (2 * _LEAST_THREAD_BYTES))

    @property
    def table_bytes(self) -> int:
        """What the tables may have: each stands beside a larger one while it grows."""
        return self.num_bytes // 4

    @property
    def longest_word(self) -> int:
        longest = self.num_bytes // _MERGING_BYTES
        return longest if self.is_bounded else min(longest, _LONGEST_WORD_BYTES)


class _Cutting:
    """Finds where a document longer than a block may be cut without a change to its pre-tokens."""

    def __init__(self, pattern: Pattern, special_tokens: list[str], memory: _Memory) -> None:
        self._pattern = pattern
        self._memory = memory
        self._counter = _make_counter(pattern, special_tokens, 1)

    def find_cut(self, text: memoryview) -> int:
        """The last place found in text that goes on; 0 for none yet, and an error for too long."""
        cut = self._counter.find_last_cut(text) if self._pattern.native else 0
        if not cut and len(text) > max(self._memory.longest_word, self._memory.block_bytes):
            kind = "pre-token" if self._pattern.native else "document"
            needed = (self._memory.held_bytes + _MERGING_BYTES * len(text)) // 1_000_000
            raise TokenizerError(
                f"a {kind} has more than {len(text):,} bytes; break it up, leave it out, or allow "
                f"more than {needed} MB for it with --max-memory"
            )
        return cut


def _make_counter(
    pattern: Pattern, special_tokens: list[str], threads: int, longest_word: int = sys.maxsize
) -> WordCounter:
    name = pattern.name if pattern.native else None
    tokens = [encode_special_token(text) for text in special_tokens]
    return WordCounter(name, tokens, threads, longest_word)


class _Counting:
    """The counting phase: feeds the native counter and keeps it within its memory."""

    def __init__(
        self,
        pattern: Pattern,
        special_tokens: list[str],
        threads: int,
        memory: _Memory,
        folder: Path,
    ) -> None:
        self._pattern = pattern
        self._special_tokens = special_tokens
        self._memory = memory
        self._folder = folder
        self._runs: list[str] = []
        self.num_bytes = 0
        self.counter = _make_counter(pattern, special_tokens, threads, memory.longest_word)
        self._empty_bytes = self.counter.memory_bytes

    def add(self, block: Buffer, progress: Progress | None) -> None:
        view = memoryview(block).cast("B")
        step = self._memory.step_bytes
        begin = 0
        while begin < len(view):
            rest = view[begin:]
            # Where any pattern but the native ones may be cut, nobody knows.
            may_cut = self._pattern.native and len(rest) > 2 * step
            cut = self.counter.find_cut(rest, step) if may_cut else len(rest)
            self._count(rest[:cut])
            begin += cut
            self.num_bytes += cut
            self._spill_if_large()
            if progress:
                progress(self.num_bytes, None)

    def finish(self) -> list[str]:
        if self._runs:
            self._spill()
        return self._runs

    def _count(self, text: memoryview) -> None:
        if self._pattern.native:
            try:
                self.counter.add_text(text)
            except ValueError as error:
                raise TokenizerError(f"{error}; break it up, or raise --max-memory") from None
            return
        words: Counter[str] = Counter()
        for piece, is_special in split_special_tokens(str(text, "utf-8"), self._special_tokens):
            if not is_special:
                words.update(self._pattern.split(piece))
        self.counter.add_words([word.encode() for word in words], list(words.values()))

    def _spill_if_large(self) -> None:
        # Tables that are all but empty stay, or every small block would become a run.
        bound = self._memory.table_bytes
        if self._memory.is_bounded and self._used_bytes > max(bound, _SMALLEST_RUN_BYTES):
            self._spill()

    @property
    def _used_bytes(self) -> int:
        return self.counter.memory_bytes - self._empty_bytes

    def _spill(self) -> None:
        try:
            self._runs += self.counter.spill(str(self._folder / f"run{len(self._runs)}"))
        except ValueError as error:
            raise TokenizerError(
                f"{error} Free some space, point TMPDIR to a larger disk, or raise --max-memory"
            ) from None
