"""Byte-level BPE in plain Python: the readable definition, and the oracle of the tests.

It is slow. The native core must produce the same merges and the same ids.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from groundup.tokenizer.definition import (
    TokenizerDefinition,
    check_special_token_texts,
    count_merges,
)
from groundup.tokenizer.patterns import GPT2, Pattern, superword_pattern

Pair = tuple[bytes, bytes]
Symbols = tuple[bytes, ...]

MAX_WORDS = 4


def train_bpe_reference(
    text_or_documents: str | Iterable[str],
    vocab_size: int,
    special_tokens: Sequence[str] = (),
    pattern: Pattern = GPT2,
    superbpe_from: int | None = None,
) -> tuple[dict[int, bytes], list[Pair]]:
    """Learn merges: repeatedly join the most frequent pair of adjacent symbols.

    Ids: the 256 bytes, then one token per merge, then the special tokens. Merges never cross
    documents, special tokens or pre-tokens. With `superbpe_from` the pre-tokens are lines: that
    many merges are learned within words, the remaining ones across them.
    """
    special_tokens = check_special_token_texts(special_tokens)
    num_merges = count_merges(vocab_size, len(special_tokens))
    documents = [text_or_documents] if isinstance(text_or_documents, str) else text_or_documents
    merges: list[Pair] = []
    if superbpe_from is None:
        learn_merges(merges, num_merges, count_words(documents, special_tokens, pattern))
    else:
        lines = count_words(documents, special_tokens, superword_pattern(pattern))
        words: Counter[Symbols] = Counter()
        for line, count in lines.items():
            for pre_token in pattern.split(b"".join(line).decode()):
                words[split_into_bytes(pre_token.encode())] += count
        learn_merges(merges, min(superbpe_from, num_merges), words)
        for pair in merges:
            lines = merge_everywhere(lines, pair)
        learn_merges(merges, num_merges, lines, MAX_WORDS)

    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [left + right for left, right in merges]
    tokens += [text.encode() for text in special_tokens]
    return dict(enumerate(tokens)), merges


def learn_merges(
    merges: list[Pair], num_merges: int, words: Counter[Symbols], max_words: int | None = None
) -> None:
    """Append to `merges` until it has `num_merges`; no token may exceed `max_words` words."""
    while len(merges) < num_merges:
        pair_counts: Counter[Pair] = Counter()
        for symbols, count in words.items():
            for pair in pairwise(symbols):
                if max_words is None or len((pair[0] + pair[1]).split()) <= max_words:
                    pair_counts[pair] += count
        if not pair_counts:
            break
        # Ties go to the lexicographically greater pair of byte strings.
        best = max(pair_counts, key=lambda pair: (pair_counts[pair], pair))
        merges.append(best)
        words = merge_everywhere(words, best)


def merge_everywhere(words: Counter[Symbols], pair: Pair) -> Counter[Symbols]:
    merged: Counter[Symbols] = Counter()
    for symbols, count in words.items():
        merged[merge_pair(symbols, pair)] += count
    return merged


def count_words(
    documents: Iterable[str], special_tokens: Sequence[str], pattern: Pattern
) -> Counter[Symbols]:
    """Count the pre-tokens of the documents, each as a sequence of single bytes."""
    words: Counter[Symbols] = Counter()
    for document in documents:
        for piece, is_special in split_special_tokens(document, special_tokens):
            if not is_special:
                for pre_token in pattern.split(piece):
                    words[split_into_bytes(pre_token.encode())] += 1
    return words


def split_into_bytes(data: bytes) -> Symbols:
    """Split into single bytes, the symbols that merging starts from."""
    return tuple(bytes([byte]) for byte in data)


def merge_pair(symbols: Symbols, pair: Pair) -> Symbols:
    """Join each occurrence of the pair, from left to right."""
    merged: list[bytes] = []
    index = 0
    while index < len(symbols):
        if symbols[index : index + 2] == pair:
            merged.append(pair[0] + pair[1])
            index += 2
        else:
            merged.append(symbols[index])
            index += 1
    return tuple(merged)


def split_special_tokens(text: str, special_tokens: Iterable[str]) -> list[tuple[str, bool]]:
    """Split text at special tokens, leftmost-longest, into (piece, is_special) tuples."""
    longest_first = sorted(special_tokens, key=len, reverse=True)
    if not longest_first:
        return [(text, False)] if text else []
    # With a capturing group, `split` also returns the separators, at odd indices.
    separator = "(" + "|".join(map(re.escape, longest_first)) + ")"
    pieces = re.split(separator, text)
    return [(piece, index % 2 == 1) for index, piece in enumerate(pieces) if piece]


def encode_reference(definition: TokenizerDefinition, text: str) -> list[int]:
    """Encode text: special tokens stay whole, and each pre-token is merged separately."""
    ids_by_token = definition.ids_by_token()
    ranks = {pair: rank for rank, pair in enumerate(definition.merges)}
    ids: list[int] = []
    for piece, is_special in split_special_tokens(text, definition.special_tokens):
        if is_special:
            ids.append(definition.special_tokens[piece])
            continue
        for pre_token in definition.pattern.split(piece):
            data = pre_token.encode()
            if definition.whole_words and data in ids_by_token:
                ids.append(ids_by_token[data])
            else:
                steps = [symbols for _, _, symbols in merge_steps(data, ranks.get)]
                symbols = steps[-1] if steps else split_into_bytes(data)
                ids.extend(ids_by_token[symbol] for symbol in symbols)
    return ids


def merge_steps(
    data: bytes, rank_of: Callable[[Pair], int | None]
) -> Iterator[tuple[int, Pair, Symbols]]:
    """Merge the bytes of one pre-token: lowest rank first, leftmost occurrence first.

    Yields the rank of each merge, its pair, and the symbols after it. A pair without a rank is
    never merged.
    """
    symbols = list(split_into_bytes(data))
    while True:
        found = [(rank_of(pair), index) for index, pair in enumerate(pairwise(symbols))]
        ranked = [(rank, index) for rank, index in found if rank is not None]
        if not ranked:
            return
        rank, index = min(ranked)
        left, right = symbols[index : index + 2]
        symbols[index : index + 2] = [left + right]
        yield rank, (left, right), tuple(symbols)


def decode_reference(definition: TokenizerDefinition, ids: Iterable[int]) -> str:
    """Decode ids to text; invalid UTF-8 becomes U+FFFD."""
    return b"".join(definition.vocab[id] for id in ids).decode("utf-8", errors="replace")


def recover_merges_reference(tokens: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return, for each token in rank order, the pair of tokens that merges into it, or (-1, -1).

    Any two adjacent symbols that form a token may merge, lowest rank first. That sequence of merges
    is unique for the bytes of a token, so the last two symbols left are its only possible pair.
    """
    rank_of = {token: rank for rank, token in enumerate(tokens)}
    pairs: list[tuple[int, int]] = []
    for token in tokens:
        symbols = split_into_bytes(token)
        for _, _, merged in merge_steps(token, lambda pair: rank_of.get(pair[0] + pair[1])):
            if len(symbols) == 2:
                break
            symbols = merged
        pairs.append((rank_of[symbols[0]], rank_of[symbols[1]]) if len(symbols) == 2 else (-1, -1))
    return pairs
