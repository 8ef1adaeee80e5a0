"""What a tokenizer is, as plain data: vocabulary, merges, special tokens, split pattern.

Checks that the parts hold together and gives them one content id. Encoding with them is the
tokenizer's work, writing them to files is that of `formats`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import operator
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, filterfalse, starmap
from typing import Any

import numpy as np

from groundup.errors import TokenizerError
from groundup.tokenizer.patterns import GPT2, Pattern

SpecialTokens = Mapping[str, int] | Iterable[str]
"""Texts to keep whole, with their ids or without."""


@dataclass(frozen=True)
class TokenizerDefinition:
    """A byte-level BPE tokenizer; earlier merges go first.

    `vocab` holds every token under its id, special ones as the UTF-8 of their text. With
    `whole_words` a pre-token that is a vocabulary entry is that token, even where the merges would
    not reach it. `lineage` says where the tokenizer came from and `chat_template` how a
    conversation becomes a text; neither changes the ids of a text, so the content id leaves them
    out.
    """

    vocab: dict[int, bytes]
    merges: list[tuple[bytes, bytes]]
    special_tokens: dict[str, int] = field(default_factory=dict)
    pattern: Pattern = GPT2
    whole_words: bool = False
    lineage: dict[str, Any] = field(default_factory=dict)
    chat_template: str | None = None

    @property
    def vocab_size(self) -> int:
        """One more than the greatest id, so that an array of this length has an entry for each."""
        return max(self.vocab) + 1 if self.vocab else 0

    def ordinary_tokens(self) -> dict[int, bytes]:
        """The vocabulary without the special tokens, in the order of ids."""
        special_ids = set(self.special_tokens.values())
        return {id: self.vocab[id] for id in sorted(self.vocab) if id not in special_ids}

    def ids_by_token(self) -> dict[bytes, int]:
        """The id of each token; an ordinary token goes before a special one of the same bytes."""
        ids = dict(zip(self.vocab.values(), self.vocab.keys(), strict=True))
        if len(ids) < len(self.vocab):
            ids.update({token: id for id, token in self.ordinary_tokens().items()})
        return ids

    def with_special_tokens(
        self, special_tokens: SpecialTokens | None, pattern: Pattern | None = None
    ) -> TokenizerDefinition:
        """The definition with these special tokens too and, if one is given, with this pattern."""
        if special_tokens is None and pattern is None:
            return self
        added = assign_special_tokens(self.vocab, special_tokens or (), self.special_tokens)
        special = {**self.special_tokens, **added}
        vocab = add_to_vocab(self.vocab, special)
        return dataclasses.replace(
            self, vocab=vocab, special_tokens=special, pattern=pattern or self.pattern
        ).validate()

    def validate(self) -> TokenizerDefinition:
        """The definition itself if its parts hold together, else a TokenizerError."""
        if self._problem is not None:
            raise TokenizerError(self._problem)
        return self

    def content_id(self) -> str:
        """A hash of all that decides the ids of a text: "sha256:" and 64 hexadecimal digits."""
        return self._content_id

    def trust(self, content_id: str) -> TokenizerDefinition:
        """Take content id and validity as given, from a file whose checksum holds."""
        self.__dict__.update(_content_id=content_id, _problem=None)
        return self

    @cached_property
    def _content_id(self) -> str:
        ids = sorted(self.vocab)
        tokens = list(map(self.vocab.__getitem__, ids))
        merge_parts = list(chain.from_iterable(self.merges))
        head = {
            "pattern": self.pattern.stages + self.pattern.behaviours,
            "special_tokens": sorted(self.special_tokens.items()),
            "whole_words": self.whole_words,
        }
        digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode() + b"\n")
        for numbers in (ids, map(len, tokens), map(len, merge_parts)):
            digest.update(np.fromiter(numbers, "<i8").tobytes())
        digest.update(b"".join(tokens))
        digest.update(b"".join(merge_parts))
        return f"sha256:{digest.hexdigest()}"

    @cached_property
    def _problem(self) -> str | None:
        """What is wrong with the vocabulary, the special tokens or the merges, if anything."""
        special_ids = set(self.special_tokens.values())
        if len(special_ids) < len(self.special_tokens):
            return "two special tokens have the same id; give each its own"
        for text, id in self.special_tokens.items():
            if not text:
                return f"the special token with id {id} is empty"
            if self.vocab.get(id) != encode_special_token(text):
                found = repr(self.vocab[id]) if id in self.vocab else "nothing"
                return f"the special token {text!r} has id {id}, where the vocabulary has {found}"
        ids, ordinary = self.ids_by_token(), self.ordinary_tokens()
        for id, token in ordinary.items():
            if ids[token] != id:
                return f"the vocabulary has the token {token!r} twice, as ids {id} and {ids[token]}"
        if self.vocab and min(self.vocab) < 0:
            return f"the vocabulary has the negative id {min(self.vocab)}; ids count from 0"
        if b"" in ids:
            return f"the token with id {ids[b'']} is empty"
        for byte in range(256):
            if bytes([byte]) not in ids:
                return f"the vocabulary has no token for the single byte 0x{byte:02X}"
        last = max(ordinary, default=-1)
        missing = next((id for id in range(last + 1) if id not in self.vocab), None)
        if missing is not None:
            return f"the vocabulary has a gap: no token has id {missing}, though ids run to {last}"
        parts = chain(chain.from_iterable(self.merges), starmap(operator.add, self.merges))
        if (absent := next(filterfalse(ids.__contains__, parts), None)) is not None:
            return (
                f"a merge names the token {absent!r}, which is not in the vocabulary; vocabulary "
                f"and merges do not belong together"
            )
        if len(set(self.merges)) < len(self.merges):
            left, right = Counter(self.merges).most_common(1)[0][0]
            return f"the merge {left!r} + {right!r} occurs twice"
        return None


def assign_special_tokens(
    vocab: Mapping[int, bytes],
    special_tokens: SpecialTokens,
    preferred_ids: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """The id of each special token: as a mapping says, a preferred one, that of the same entry of
    the vocabulary, or a new one."""
    if isinstance(special_tokens, Mapping):
        return dict(special_tokens)
    texts = check_special_token_texts(special_tokens)
    wanted = {encode_special_token(text): text for text in texts}
    ids = {wanted[token]: id for id, token in vocab.items() if token in wanted}
    ids.update({text: id for text, id in (preferred_ids or {}).items() if text in set(texts)})
    next_id = max([-1, *vocab, *ids.values()]) + 1
    for text in texts:
        if text not in ids:
            ids[text] = next_id
            next_id += 1
    return {text: ids[text] for text in texts}


def add_to_vocab(vocab: Mapping[int, bytes], special_tokens: Mapping[str, int]) -> dict[int, bytes]:
    """The vocabulary, in order of ids, with the special tokens it lacks."""
    missing = {
        id: encode_special_token(text) for text, id in special_tokens.items() if id not in vocab
    }
    return dict(sorted({**vocab, **missing}.items()))


def check_special_token_texts(special_tokens: Iterable[str]) -> list[str]:
    """The texts as a list; an empty one or one given twice is a TokenizerError."""
    if isinstance(special_tokens, str):
        raise TokenizerError(f"special tokens are a list: write [{special_tokens!r}]")
    texts = list(special_tokens)
    if "" in texts:
        raise TokenizerError("a special token is empty; it needs at least one character")
    if len(set(texts)) != len(texts):
        twice = next(text for text in texts if texts.count(text) > 1)
        raise TokenizerError(f"the special token {twice!r} is given twice; give it once")
    return texts


def count_merges(vocab_size: int, num_special_tokens: int) -> int:
    """How many merges fill a vocabulary up."""
    smallest = 256 + num_special_tokens
    if not smallest <= vocab_size < 2**63:
        raise TokenizerError(
            f"vocab_size is {vocab_size}; it must be at least {smallest} (256 bytes and "
            f"{num_special_tokens} special tokens) and fit into 64 bits"
        )
    return vocab_size - smallest


def encode_special_token(text: str) -> bytes:
    """The bytes of a special token; text that has none in UTF-8 is a TokenizerError."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise TokenizerError(
            f"the special token {text!r} has a lone surrogate, which UTF-8 cannot encode"
        ) from None
