"""Counting the pre-tokens of a text within a bound on memory, the first half of training.

The native counter does the work; its tables go to sorted runs on disk when they outgrow the bound.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from groundup.errors import TokenizerError
from groundup.runtime import Progress, memory_bytes, peak_memory_bytes
from groundup.text_files import Part, Reading, read
from groundup.tokenizer.definition import encode_special_token
from groundup.tokenizer.native import WordCounter
from groundup.tokenizer.patterns import Pattern
from groundup.tokenizer.reference import split_special_tokens

if TYPE_CHECKING:
    from typing_extensions import Buffer

# How much text is counted between two looks at the memory, the clock and the keyboard.
_STEP_BYTES = 64 << 20

_SMALLEST_RUN_BYTES = 1 << 20
# The tables of one thread while they are all but empty, and what stands around them.
_LEAST_THREAD_BYTES = 4 << 20
# Modules that are still to be loaded, and the vocabulary itself.
_PROGRAM_BYTES = 8 << 20
# A byte of a pre-token that is one letter again and again takes this much in the end.
_MERGING_BYTES = 24
# A longer pre-token is hardly text; who wants it nevertheless says how much memory it may take.
_LONGEST_WORD_BYTES = 64 << 20
# Of a part that is counted elsewhere: text read at once, and text whose counts are sent at once.
_PART_BLOCK_BYTES = 4 << 20
_TABLE_TEXT_BYTES = 256 << 20


class MemoryBound:
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


class WordCounting:
    """Feeds the native counter and keeps it within its memory."""

    def __init__(
        self,
        pattern: Pattern,
        special_tokens: list[str],
        threads: int,
        memory: MemoryBound,
        folder: Path | None,
    ) -> None:
        self._pattern = pattern
        self._special_tokens = special_tokens
        self._memory = memory
        self._folder = folder
        self.num_bytes = 0
        self.counter = make_counter(pattern, special_tokens, threads, memory.longest_word)
        self._empty_bytes = self.counter.memory_bytes

    def add(self, block: Buffer, progress: Progress | None, text_bytes: int | None = None) -> None:
        """Count the pre-tokens of a block, of which `text_bytes` are not separators."""
        view = memoryview(block).cast("B")
        self.num_bytes += 0 if text_bytes is None else text_bytes - len(view)
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
            if progress:
                progress(self.num_bytes, None)

    def merge(self, num_bytes: int, words: Mapping[bytes, int]) -> None:
        """Add what another counting came to.

        num_bytes: how much text that was.
        words: its pre-tokens with their counts.
        """
        self.counter.add_words(list(words), list(words.values()))
        self.num_bytes += num_bytes

    @property
    def is_large(self) -> bool:
        """Whether the tables have outgrown their part of the memory."""
        # Tables that are all but empty stay, or every small block would become a run.
        return self._used_bytes > max(self._memory.table_bytes, _SMALLEST_RUN_BYTES)

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

    @property
    def _used_bytes(self) -> int:
        return self.counter.memory_bytes - self._empty_bytes


@dataclass(frozen=True)
class PartCounting:
    """Counts the pre-tokens of a part of a corpus; what it needs for that can go anywhere."""

    pattern: Pattern
    special_tokens: list[str]
    max_memory_bytes: int | None
    reading: Reading
    block_bytes: int | None = None

    def __call__(self, part: Part) -> Iterator[tuple[int, dict[bytes, int]]]:
        """Yield bytes counted and pre-tokens with their counts, in tables of bounded size."""
        memory = MemoryBound(self.max_memory_bytes)
        block_bytes = self.block_bytes or min(memory.block_bytes, _PART_BLOCK_BYTES)
        blocks = read_blocks(
            part, self.pattern, self.special_tokens, memory, self.reading, block_bytes
        )
        counting = WordCounting(self.pattern, self.special_tokens, 1, memory, None)
        for block, num_bytes in blocks:
            counting.add(block, None, num_bytes)
            if counting.is_large or counting.num_bytes >= _TABLE_TEXT_BYTES:
                yield counting.num_bytes, counting.counter.items()
                counting = WordCounting(self.pattern, self.special_tokens, 1, memory, None)
        yield counting.num_bytes, counting.counter.items()


def read_blocks(
    part: Part,
    pattern: Pattern,
    special_tokens: list[str],
    memory: MemoryBound,
    reading: Reading,
    block_bytes: int,
) -> Iterator[tuple[bytes | memoryview, int]]:
    """The text of files in blocks that may be counted one by one, and the bytes of documents in it.

    special_tokens: nothing merges across them, so documents may be cut there.
    memory: how long a pre-token or document may be.
    """
    counter = make_counter(pattern, special_tokens, num_threads=1)
    cut = partial(find_cut, counter=counter, pattern=pattern, memory=memory)
    for batch in read(
        part, reading, batch_bytes=block_bytes, find_cut=cut, piece_bytes=block_bytes
    ):
        if special_tokens:
            yield batch.data, int((batch.bounds[:, 1] - batch.bounds[:, 0]).sum())
        else:
            view = memoryview(batch.data)
            yield from ((view[begin:end], end - begin) for begin, end in batch.bounds.tolist())


def find_cut(text: memoryview, counter: WordCounter, pattern: Pattern, memory: MemoryBound) -> int:
    """The last index found where a document longer than a block may be cut; 0 for none yet.

    Cutting there changes no pre-token. A document or pre-token that is too long is an error.

    text: the beginning of the document.
    counter: finds pre-tokens.
    pattern: how it finds them.
    memory: how long a pre-token or document may be.
    """
    cut = counter.find_last_cut(text) if pattern.native else 0
    if not cut and len(text) > max(memory.longest_word, memory.block_bytes):
        kind = "pre-token" if pattern.native else "document"
        needed = (memory.held_bytes + _MERGING_BYTES * len(text)) // 1_000_000
        raise TokenizerError(
            f"a {kind} has more than {len(text):,} bytes; break it up, leave it out, or allow "
            f"more than {needed} MB for it with --max-memory"
        )
    return cut


def make_counter(
    pattern: Pattern, special_tokens: list[str], num_threads: int, longest_word: int = sys.maxsize
) -> WordCounter:
    """A native counter of the pre-tokens between special tokens.

    pattern: how text is split into pre-tokens.
    special_tokens: texts that stay whole.
    num_threads: threads that count.
    longest_word: pre-tokens of more bytes are an error.
    """
    name = pattern.name if pattern.native else None
    tokens = [encode_special_token(text) for text in special_tokens]
    return WordCounter(name, tokens, num_threads, longest_word)
