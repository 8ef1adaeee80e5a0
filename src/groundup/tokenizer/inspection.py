"""Looking into a tokenizer: how a text becomes ids step by step, and what they are worth.

Gives results as small dataclasses; printing them is the command line's work.
"""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from groundup.tokenizer.definition import TokenizerDefinition
from groundup.tokenizer.reference import merge_steps, split_into_bytes, split_special_tokens

if TYPE_CHECKING:
    from groundup.tokenizer.tokenizer import Tokenizer

# The Pile: the corpus whose encoding time makes a rate easy to picture.
LARGE_CORPUS_BYTES = 825 * 10**9


@dataclass(frozen=True)
class CodePoint:
    """One character of a text."""

    character: str
    number: str
    name: str
    utf8: bytes


@dataclass(frozen=True)
class MergeStep:
    """One merge that fired: its rank, its two parts, and the symbols of the pre-token after it."""

    rank: int
    left: bytes
    right: bytes
    symbols: tuple[bytes, ...]


@dataclass(frozen=True)
class PreToken:
    """A pre-token on its way from bytes to ids; a special token is one too, with no merges."""

    text: str
    start: tuple[bytes, ...]
    steps: tuple[MergeStep, ...]
    tokens: tuple[bytes, ...]
    ids: tuple[int, ...]
    is_special: bool = False
    is_whole_word: bool = False


@dataclass(frozen=True)
class Explanation:
    """All that happens between a text and its ids."""

    text: str
    code_points: tuple[CodePoint, ...]
    pre_tokens: tuple[PreToken, ...]

    @property
    def ids(self) -> list[int]:
        """The ids of the whole text."""
        return [id for pre_token in self.pre_tokens for id in pre_token.ids]


@dataclass(frozen=True)
class Measurement:
    """What a tokenizer makes of some texts.

    The first pass meets most words for the first time; later ones find them in the encoder's cache.
    A large corpus lies between the two rates.
    """

    num_bytes: int
    num_characters: int
    num_words: int
    num_tokens: int
    num_distinct_tokens: int
    vocab_size: int
    longest_tokens: tuple[bytes, ...]
    first_bytes_per_second: float
    best_bytes_per_second: float

    @property
    def bytes_per_token(self) -> float:
        """How much text one id stands for."""
        return bytes_per_token(self.num_bytes, self.num_tokens)

    @property
    def tokens_per_word(self) -> float:
        """How many ids a word between white space takes."""
        return self.num_tokens / self.num_words if self.num_words else 0.0

    @property
    def vocabulary_use(self) -> float:
        """The fraction of the vocabulary that occurs."""
        return self.num_distinct_tokens / self.vocab_size if self.vocab_size else 0.0


def bytes_per_token(num_bytes: int, num_tokens: int) -> float:
    """How much text one id stands for; 0 where there are none.

    num_bytes: of UTF-8.
    num_tokens: ids for them.
    """
    return num_bytes / num_tokens if num_tokens else 0.0


def explain(definition: TokenizerDefinition, text: str) -> Explanation:
    """Follow a text through code points, UTF-8, pre-tokens and merges to its ids.

    definition: of the tokenizer.
    text: what to follow.
    """
    follow = follow_merges(definition)
    pre_tokens = [
        follow(pre_token, is_special)
        for piece, is_special in split_special_tokens(text, definition.special_tokens)
        for pre_token in ([piece] if is_special else definition.pattern.split(piece))
    ]
    return Explanation(text, tuple(map(describe_code_point, text)), tuple(pre_tokens))


def follow_merges(definition: TokenizerDefinition) -> Callable[[str, bool], PreToken]:
    """What explains one pre-token, or a special token, after the other."""
    ranks = {pair: rank for rank, pair in enumerate(definition.merges)}
    ids_by_token = definition.ids_by_token()

    def follow(pre_token: str, is_special: bool) -> PreToken:
        if is_special:
            token = (pre_token.encode(),)
            ids: tuple[int, ...] = (definition.special_tokens[pre_token],)
            return PreToken(pre_token, token, (), token, ids, is_special=True)
        data = pre_token.encode()
        start = split_into_bytes(data)
        if definition.whole_words and data in ids_by_token:
            ids = (ids_by_token[data],)
            return PreToken(pre_token, start, (), (data,), ids, is_whole_word=True)
        merges = merge_steps(data, ranks.get)
        steps = tuple(MergeStep(rank, *pair, symbols) for rank, pair, symbols in merges)
        symbols = steps[-1].symbols if steps else start
        ids = tuple(ids_by_token[symbol] for symbol in symbols)
        return PreToken(pre_token, start, steps, symbols, ids)

    return follow


def describe_code_point(character: str) -> CodePoint:
    """The number, name and bytes of one character."""
    name = unicodedata.name(character, "") or f"<{unicodedata.category(character)}>"
    return CodePoint(character, f"U+{ord(character):04X}", name, character.encode())


def measure(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    num_passes: int = 3,
    num_threads: int | None = None,
) -> Measurement:
    """Encode the texts a few times, count tokens and take times.

    tokenizer: what encodes.
    texts: the documents to encode.
    num_passes: how often; the speeds are those of the first and of the best time.
    num_threads: all cores if None.
    """
    import numpy

    num_bytes = sum(len(text.encode()) for text in texts)
    seconds: list[float] = []
    for _ in range(max(1, num_passes)):
        begin = time.perf_counter()
        ids, _ = tokenizer.encode_batch(texts, num_threads=num_threads)
        seconds.append(time.perf_counter() - begin)
    distinct = numpy.unique(numpy.asarray(ids)).tolist()
    vocab = tokenizer.vocab
    ordinary = set(distinct) - set(tokenizer.special_tokens.values())
    return Measurement(
        num_bytes=num_bytes,
        num_characters=sum(map(len, texts)),
        num_words=sum(len(text.split()) for text in texts),
        num_tokens=len(ids),
        num_distinct_tokens=len(distinct),
        vocab_size=len(vocab),
        longest_tokens=find_longest_tokens(vocab[id] for id in ordinary),
        first_bytes_per_second=num_bytes / seconds[0],
        best_bytes_per_second=num_bytes / min(seconds),
    )


def estimate_large_corpus_seconds(bytes_per_second: float) -> float:
    """How long 825 GB would take at this rate."""
    return LARGE_CORPUS_BYTES / bytes_per_second if bytes_per_second else 0.0


def find_longest_tokens(tokens: Iterable[bytes], count: int = 10) -> tuple[bytes, ...]:
    """The longest tokens, the longest first and equal ones in the order of their bytes."""
    return tuple(sorted(tokens, key=lambda token: (-len(token), token))[:count])
