"""Every tokenizer on every corpus: how much text a token stands for, at home and abroad, how fast.

Tokenizers are given, or learned from the corpora themselves; what they are measured on is the end
of each corpus, which none of those learned here has seen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from groundup.errors import DataError
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.inspection import measure
from groundup.tokenizer.training import train_tokenizer

HELD_OUT_SHARE = 0.1


@dataclass(frozen=True)
class Cell:
    """One tokenizer on the held-out text of one corpus."""

    tokenizer: str
    corpus: str
    vocab_size: int
    learned_from: str | None
    num_bytes: int
    num_tokens: int
    bytes_per_token: float
    tokens_per_word: float
    vocabulary_use: float
    first_bytes_per_second: float
    best_bytes_per_second: float
    relative_to_home: float | None = None
    """bytes_per_token in parts of what the tokenizer learned from this corpus, with the same
    vocabulary size, reaches here; 1 at home."""


@dataclass(frozen=True)
class TokenizerStudy:
    """All cells, by tokenizer and then by corpus."""

    tokenizers: list[str]
    corpora: list[str]
    cells: list[Cell]

    def cell(self, tokenizer: str, corpus: str) -> Cell:
        return next(c for c in self.cells if (c.tokenizer, c.corpus) == (tokenizer, corpus))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def study_tokenizers(
    corpora: Mapping[str, str],
    tokenizers: Mapping[str, Tokenizer],
    *,
    vocab_sizes: Sequence[int] = (),
    special_tokens: Sequence[str] = (),
    num_passes: int = 3,
    num_threads: int | None = None,
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
    cells = []
    for name, tokenizer in known.items():
        for corpus, (_, held_out) in halves.items():
            result = measure(tokenizer, [held_out], num_passes=num_passes, num_threads=num_threads)
            cells.append(
                Cell(
                    tokenizer=name,
                    corpus=corpus,
                    vocab_size=result.vocab_size,
                    learned_from=origins[name][0] if name in origins else None,
                    num_bytes=result.num_bytes,
                    num_tokens=result.num_tokens,
                    bytes_per_token=result.bytes_per_token,
                    tokens_per_word=result.tokens_per_word,
                    vocabulary_use=result.vocabulary_use,
                    first_bytes_per_second=result.first_bytes_per_second,
                    best_bytes_per_second=result.best_bytes_per_second,
                )
            )
    return TokenizerStudy(list(known), list(halves), _with_homes(cells, origins))


def hold_out(text: str, name: str) -> tuple[str, str]:
    """The text up to a line end near nine tenths of it, and the rest."""
    cut = text.rfind("\n", 0, round(len(text) * (1 - HELD_OUT_SHARE))) + 1
    if not cut:
        cut = round(len(text) * (1 - HELD_OUT_SHARE))
    if not text[:cut].strip() or not text[cut:].strip():
        raise DataError(f"{name} has too little text to learn from one part and measure on another")
    return text[:cut], text[cut:]


def _with_homes(cells: list[Cell], origins: dict[str, tuple[str, int]]) -> list[Cell]:
    homes = {origin: name for name, origin in origins.items()}
    by_place = {(cell.tokenizer, cell.corpus): cell for cell in cells}
    result = []
    for cell in cells:
        relative = None
        if cell.tokenizer in origins:
            home = homes[(cell.corpus, origins[cell.tokenizer][1])]
            relative = cell.bytes_per_token / by_place[home, cell.corpus].bytes_per_token
        result.append(Cell(**{**asdict(cell), "relative_to_home": relative}))
    return result
