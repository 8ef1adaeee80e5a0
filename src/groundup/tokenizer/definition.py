"""A tokenizer as plain data: vocabulary, merges, special tokens, split pattern.

Validates that the parts are consistent and hashes them to a content id. `tokenizer` encodes with
them and `formats` reads and writes them.
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
"""Special tokens, with or without their ids."""


@dataclass(frozen=True)
class TokenizerDefinition:
    """A byte-level BPE tokenizer; earlier merges have priority.

    `vocab` maps each id to its token; special tokens are the UTF-8 of their text. With
    `whole_words` a pre-token found in the vocabulary becomes that token, even if the merges would
    not produce it. `lineage` records the tokenizer's origin and `chat_template` renders
    conversations; neither affects the ids of a text, so the content id ignores them.
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
        """The largest id plus one: the number of rows of an embedding table."""
        return max(self.vocab) + 1 if self.vocab else 0

    def ordinary_tokens(self) -> dict[int, bytes]:
        """Return the vocabulary without special tokens, sorted by id."""
        special_ids = set(self.special_tokens.values())
        return {id: self.vocab[id] for id in sorted(self.vocab) if id not in special_ids}

    def ids_by_token(self) -> dict[bytes, int]:
        """Map each token to its id; an ordinary token wins over a special one with its bytes."""
        ids = dict(zip(self.vocab.values(), self.vocab.keys(), strict=True))
        if len(ids) < len(self.vocab):
            ids.update({token: id for id, token in self.ordinary_tokens().items()})
        return ids

    def with_special_tokens(
        self, special_tokens: SpecialTokens | None, pattern: Pattern | None = None
    ) -> TokenizerDefinition:
        """Return the definition with these special tokens added and, if given, this pattern."""
        if special_tokens is None and pattern is None:
            return self
        added = assign_special_tokens(self.vocab, special_tokens or (), self.special_tokens)
        special = {**self.special_tokens, **added}
        vocab = add_to_vocab(self.vocab, special)
        return dataclasses.replace(
            self, vocab=vocab, special_tokens=special, pattern=pattern or self.pattern
        ).validate()

    def validate(self) -> TokenizerDefinition:
        """Return the definition itself; raise TokenizerError if its parts are inconsistent."""
        if self._problem is not None:
            raise TokenizerError(self._problem)
        return self

    def trust(self, content_id: str) -> TokenizerDefinition:
        """Skip validation and hashing: the checksum of the file vouches for its content."""
        self.__dict__.update(content_id=content_id, _problem=None)
        return self

    @cached_property
    def content_id(self) -> str:
        """A hash of all that determines the ids of a text: "sha256:" and 64 hex digits."""
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
        """The first inconsistency found, as an error message; None if there is none."""
        special_ids = set(self.special_tokens.values())
        if len(special_ids) < len(self.special_tokens):
            return "two special tokens have the same id; give each its own"
        for text, id in self.special_tokens.items():
            if not text:
                return f"the special token with id {id} is empty"
            if self.vocab.get(id) != encode_special_token(text):
                found = repr(self.vocab[id]) if id in self.vocab else "nothing"
                return f"the special token {text!r} has id {id}, but vocab[{id}] is {found}"
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
                f"a merge contains the token {absent!r}, which is not in the vocabulary; use "
                f"vocabulary and merges from the same tokenizer"
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
    """Return the id of each special token: the one given, the preferred one, that of its vocabulary
    entry, or a new one."""
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
    """Return the vocabulary with its missing special tokens added, sorted by id."""
    missing = {
        id: encode_special_token(text) for text, id in special_tokens.items() if id not in vocab
    }
    return dict(sorted({**vocab, **missing}.items()))


def check_special_token_texts(special_tokens: Iterable[str]) -> list[str]:
    """Return the texts as a list; raise TokenizerError for an empty or repeated one."""
    if isinstance(special_tokens, str):
        raise TokenizerError(f"special_tokens must be a list: write [{special_tokens!r}]")
    texts = list(special_tokens)
    if not all(isinstance(text, str) for text in texts):
        raise TokenizerError(f"special tokens must be strings, not {texts!r:.60}")
    if "" in texts:
        raise TokenizerError("a special token is empty; it needs at least one character")
    if len(set(texts)) != len(texts):
        twice = next(text for text in texts if texts.count(text) > 1)
        raise TokenizerError(f"the special token {twice!r} is given twice; give it once")
    return texts


def count_merges(vocab_size: int, num_special_tokens: int) -> int:
    """Return the number of merges that fill the vocabulary."""
    smallest = 256 + num_special_tokens
    if not smallest <= vocab_size < 2**63:
        raise TokenizerError(
            f"vocab_size is {vocab_size}; it must be at least {smallest} (256 bytes and "
            f"{num_special_tokens} special tokens) and fit into 64 bits"
        )
    return vocab_size - smallest


def encode_special_token(text: str) -> bytes:
    """Encode a special token as UTF-8; raise TokenizerError if its text has a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise TokenizerError(
            f"the special token {text!r} has a lone surrogate, which UTF-8 cannot encode"
        ) from None
