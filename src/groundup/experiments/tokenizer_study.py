"""Every tokenizer on every corpus: how much text a token stands for, at home and abroad, how fast.

Tokenizers are given, or learned from the corpora themselves; what they are measured on is the end
of each corpus, which none of those learned here has seen. Special tokens stand between documents
and are not measured, for a tokenizer that does not know them would pay for every one.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from groundup.errors import DataError
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.inspection import measure
from groundup.tokenizer.training import train_tokenizer

HELD_OUT_FRACTION = 0.1

# Some processors' clocks stand still for as long.
_SHORTEST_SECONDS = 1e-6


@dataclass(frozen=True)
class Cell:
    """One tokenizer on the held-out text of one corpus."""

    tokenizer: str
    corpus: str
    vocab_size: int
    learned_from: str | None
    asked_size: int | None
    """The vocabulary size that it was to learn; a small corpus may not hold as many tokens."""
    num_bytes: int
    num_tokens: int
    bytes_per_token: float
    tokens_per_word: float
    vocabulary_use: float
    first_bytes_per_second: float
    best_bytes_per_second: float
    """By the wall clock, with all threads and whatever else the machine has to do."""
    bytes_per_core_second: float
    """By the processor's own clock, of text that the tokenizer has never seen."""
    relative_to_home: float | None = None
    """bytes_per_token in parts of what the tokenizer learned from this corpus, with the same
    vocabulary size, reaches here; 1 at home."""

    @property
    def is_home(self) -> bool:
        return self.learned_from == self.corpus


@dataclass(frozen=True)
class TokenizerStudy:
    """All cells, by tokenizer and then by corpus."""

    tokenizers: list[str]
    corpora: list[str]
    cells: list[Cell]
    device: str = ""
    """What the rates were measured on."""

    def cell(self, tokenizer: str, corpus: str) -> Cell:
        return next(c for c in self.cells if (c.tokenizer, c.corpus) == (tokenizer, corpus))


def study_tokenizers(
    corpora: Mapping[str, str],
    tokenizers: Mapping[str, Tokenizer],
    *,
    vocab_sizes: Sequence[int] = (),
    special_tokens: Sequence[str] = (),
    num_passes: int = 5,
    num_threads: int | None = None,
    device: str = "",
) -> TokenizerStudy:
    """Learn one tokenizer from each corpus for each vocabulary size, and measure all on all."""
    halves = {name: hold_out(text, name) for name, text in corpora.items()}
    known = dict(tokenizers)
    origins: dict[str, tuple[str, int]] = {}
    for size in vocab_sizes:
        for corpus, (learned, _) in halves.items():
            tokenizer, _ = train_tokenizer([learned.encode()], size, list(special_tokens))
            name = f"{corpus}-{size}"
            # A file that was given may have the name of one that is learned here.
            name = f"{name} (learned)" if name in tokenizers else name
            known[name] = tokenizer
            origins[name] = (corpus, size)
    if not known:
        raise DataError(
            "there is no tokenizer to study: name files with --tokenizers, or learn some with "
            "--vocab-sizes"
        )
    measured = {name: _split(text, special_tokens) for name, (_, text) in halves.items()}
    cells: list[Cell] = []
    for name, tokenizer in known.items():
        # What it builds at its first use is no matter of the first corpus.
        tokenizer.encode("Once")
        learned_from, asked_size = origins.get(name, (None, None))
        for corpus, documents in measured.items():
            fresh = Tokenizer.from_definition(tokenizer.definition)
            result = measure(fresh, documents, num_passes=num_passes, num_threads=num_threads)
            cells.append(
                Cell(
                    tokenizer=name,
                    corpus=corpus,
                    vocab_size=result.vocab_size,
                    learned_from=learned_from,
                    asked_size=asked_size,
                    num_bytes=result.num_bytes,
                    num_tokens=result.num_tokens,
                    bytes_per_token=result.bytes_per_token,
                    tokens_per_word=result.tokens_per_word,
                    vocabulary_use=result.vocabulary_use,
                    first_bytes_per_second=result.first_bytes_per_second,
                    best_bytes_per_second=result.best_bytes_per_second,
                    bytes_per_core_second=_rate_of_core(tokenizer, documents, num_passes),
                )
            )
    homes = {(cell.corpus, cell.asked_size): cell for cell in cells if cell.is_home}
    cells = [
        cell
        if cell.asked_size is None
        else replace(
            cell,
            relative_to_home=cell.bytes_per_token
            / homes[cell.corpus, cell.asked_size].bytes_per_token,
        )
        for cell in cells
    ]
    return TokenizerStudy(list(known), list(halves), cells, device)


def hold_out(text: str, name: str) -> tuple[str, str]:
    """The text up to a line end near nine tenths of it, and the rest."""
    cut = text.rfind("\n", 0, round(len(text) * (1 - HELD_OUT_FRACTION))) + 1
    if not cut:
        cut = round(len(text) * (1 - HELD_OUT_FRACTION))
    if not text[:cut].strip() or not text[cut:].strip():
        raise DataError(f"{name} has too little text to learn from one part and measure on another")
    return text[:cut], text[cut:]


def _rate_of_core(tokenizer: Tokenizer, documents: Sequence[str], num_passes: int) -> float:
    """The best of several passes, each by a copy that has met no word yet."""
    seconds = []
    for _ in range(max(1, num_passes)):
        fresh = Tokenizer.from_definition(tokenizer.definition)
        begin = time.process_time()
        fresh.encode_batch(documents, num_threads=1)
        seconds.append(time.process_time() - begin)
    num_bytes = sum(len(document.encode()) for document in documents)
    return num_bytes / max(min(seconds), _SHORTEST_SECONDS)


def _split(text: str, special_tokens: Sequence[str]) -> list[str]:
    """The documents between special tokens."""
    if not special_tokens:
        return [text]
    pattern = "|".join(map(re.escape, special_tokens))
    return [document for document in re.split(pattern, text) if document.strip()] or [text]
