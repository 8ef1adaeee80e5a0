"""Trace how a text is encoded: pre-tokens, their UTF-8 bytes, and each merge.

Returns dataclasses; the command line prints them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from groundup.tokenizer.definition import TokenizerDefinition
from groundup.tokenizer.reference import merge_steps, split_into_bytes, split_special_tokens


@dataclass(frozen=True)
class MergeStep:
    """One applied merge: its rank, its two parts, and the pre-token's symbols after it."""

    rank: int
    left: bytes
    right: bytes
    symbols: tuple[bytes, ...]


@dataclass(frozen=True)
class PreToken:
    """How one pre-token is encoded; a special token is a pre-token without merges."""

    text: str
    start: tuple[bytes, ...]
    steps: tuple[MergeStep, ...]
    tokens: tuple[bytes, ...]
    ids: tuple[int, ...]
    is_special: bool = False
    is_whole_word: bool = False


def explain(definition: TokenizerDefinition, text: str) -> list[PreToken]:
    """Trace the encoding of a text, pre-token by pre-token."""
    follow = follow_merges(definition)
    return [
        follow(pre_token, is_special)
        for piece, is_special in split_special_tokens(text, definition.special_tokens)
        for pre_token in ([piece] if is_special else definition.pattern.split(piece))
    ]


def follow_merges(definition: TokenizerDefinition) -> Callable[[str, bool], PreToken]:
    """Return a function that traces one pre-token or special token."""
    ranks = {pair: rank for rank, pair in enumerate(definition.merges)}
    ids_by_token = definition.ids_by_token()

    def follow(text: str, is_special: bool) -> PreToken:
        data = text.encode()
        start = split_into_bytes(data)
        if is_special:
            id = definition.special_tokens[text]
            return PreToken(text, (data,), (), (data,), (id,), is_special=True)
        if definition.whole_words and data in ids_by_token:
            return PreToken(text, start, (), (data,), (ids_by_token[data],), is_whole_word=True)
        merges = merge_steps(data, ranks.get)
        steps = tuple(MergeStep(rank, *pair, symbols) for rank, pair, symbols in merges)
        symbols = steps[-1].symbols if steps else start
        return PreToken(text, start, steps, symbols, tuple(map(ids_by_token.__getitem__, symbols)))

    return follow
