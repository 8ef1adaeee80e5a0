"""What a tokenizer is, as plain data: vocabulary, merges, special tokens, split pattern.

Checks that the parts hold together and gives them one content id. Encoding with them is the
tokenizer's work, writing them to files is that of `formats`.
"""

from __future__ import annotations

import hashlib
import json
import operator
import sys
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, starmap
from typing import Any

from groundup.errors import TokenizerError
from groundup.tokenizer.patterns import GPT2, Pattern

# Beyond what any text has pairs for, and within what the native core counts in.
_MAX_VOCAB_SIZE = 2**63 - 1
_SINGLE_BYTES = [bytes([byte]) for byte in range(256)]


@dataclass(frozen=True)
class TokenizerDefinition:
    """A byte-level BPE tokenizer; earlier merges go first.

    `vocab` holds every token under its id, special ones as the UTF-8 of their text. With
    `whole_words` a pre-token that is a vocabulary entry is that token, even where the merges would
    not reach it. `lineage` says where the tokenizer came from and `chat_template` how a
    conversation becomes a text; no id of a text hangs on them, so the content id leaves them out.
    """

    vocab: dict[int, bytes]
    merges: list[tuple[bytes, bytes]]
    special_tokens: dict[str, int] = field(default_factory=dict)
    pattern: Pattern = GPT2
    whole_words: bool = False
    lineage: dict[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    _content_id: str | None = field(default=None, init=False, repr=False, compare=False)
    _is_sound: bool = field(default=False, init=False, repr=False, compare=False)

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

    def validate(self) -> TokenizerDefinition:
        """Return the definition itself if its parts hold together, else raise a TokenizerError."""
        if not self._is_sound:
            ids = self.ids_by_token()
            self._check_special_tokens()
            self._check_vocab(ids)
            self._check_merges(ids)
            object.__setattr__(self, "_is_sound", True)
        return self

    def content_id(self) -> str:
        """A hash of all that decides the ids of a text: "sha256:" and 64 hexadecimal digits."""
        if self._content_id is not None:
            return self._content_id
        ids = sorted(self.vocab)
        tokens = list(map(self.vocab.__getitem__, ids))
        merge_parts = list(chain.from_iterable(self.merges))
        head = {
            "pattern": self.pattern.stages,
            "special_tokens": sorted(self.special_tokens.items()),
            "whole_words": self.whole_words,
        }
        digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode() + b"\n")
        for numbers in (ids, map(len, tokens), map(len, merge_parts)):
            digest.update(_little_endian(numbers))
        digest.update(b"".join(tokens))
        digest.update(b"".join(merge_parts))
        object.__setattr__(self, "_content_id", f"sha256:{digest.hexdigest()}")
        return self.content_id()

    def trust(self, content_id: str) -> TokenizerDefinition:
        """Take content id and soundness as given, from a file whose checksum holds."""
        object.__setattr__(self, "_content_id", content_id)
        object.__setattr__(self, "_is_sound", True)
        return self

    def _check_special_tokens(self) -> None:
        text_of_id: dict[int, str] = {}
        for text, id in self.special_tokens.items():
            if not text:
                raise TokenizerError(
                    f"the special token with id {id} is empty; a special token needs at least one "
                    f"character"
                )
            if id in text_of_id:
                raise TokenizerError(
                    f"the special tokens {text_of_id[id]!r} and {text!r} have the same id {id}; "
                    f"give each its own"
                )
            text_of_id[id] = text
            if self.vocab.get(id) != encode_special_token(text):
                found = repr(self.vocab[id]) if id in self.vocab else "nothing"
                raise TokenizerError(
                    f"the special token {text!r} has id {id}, but the vocabulary has {found} "
                    f"there; the two must agree"
                )

    def _check_vocab(self, ids: dict[bytes, int]) -> None:
        special_ids = set(self.special_tokens.values())
        if self.vocab and min(self.vocab) < 0:
            id = min(self.vocab)
            raise TokenizerError(
                f"the token {self.vocab[id]!r} has the negative id {id}; ids count from 0"
            )
        if len(ids) < len(self.vocab):
            self._check_duplicates()
        if b"" in ids:
            raise TokenizerError(
                f"the token with id {ids[b'']} is empty; a token needs at least one byte"
            )
        for byte in _SINGLE_BYTES:
            if byte not in ids:
                raise TokenizerError(
                    f"the vocabulary has no token for the single byte 0x{byte[0]:02X}, so it "
                    f"cannot encode every text; add the missing one of the 256 bytes"
                )
        self._check_gaps(special_ids)

    def _check_gaps(self, special_ids: set[int]) -> None:
        last = max(self.vocab.keys() - special_ids, default=-1)
        below = len(self.vocab) - sum(1 for id in special_ids if id > last)
        if below != last + 1:
            missing = next(id for id in range(last + 1) if id not in self.vocab)
            raise TokenizerError(
                f"the vocabulary has a gap: no token has id {missing}, though ids run to {last}; "
                f"number the tokens without holes"
            )

    def _check_duplicates(self) -> None:
        first_id: dict[bytes, int] = {}
        for id, token in self.ordinary_tokens().items():
            if token in first_id:
                raise TokenizerError(
                    f"the vocabulary has the token {token!r} twice, as id {first_id[token]} and as "
                    f"id {id}; each token may occur once"
                )
            first_id[token] = id

    def _check_merges(self, ids: dict[bytes, int]) -> None:
        merged = starmap(operator.add, self.merges)
        if (
            len(set(self.merges)) == len(self.merges)
            and all(map(ids.__contains__, chain.from_iterable(self.merges)))
            and all(map(ids.__contains__, merged))
        ):
            return
        seen: dict[tuple[bytes, bytes], int] = {}
        for number, (left, right) in enumerate(self.merges, start=1):
            for token in (left, right, left + right):
                if token not in ids:
                    raise TokenizerError(
                        f"merge {number} ({left!r} + {right!r}) names the token {token!r}, which "
                        f"is not in the vocabulary; vocabulary and merges do not belong together"
                    )
            if (left, right) in seen:
                raise TokenizerError(
                    f"merge {number} ({left!r} + {right!r}) repeats merge {seen[left, right]}; "
                    f"each pair may occur once"
                )
            seen[left, right] = number


def assign_special_tokens(
    vocab: Mapping[int, bytes],
    special_tokens: Iterable[str],
    preferred_ids: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Find an id for each special token: a preferred one, that of the same entry, or a new one.

    vocab: the tokens by id.
    special_tokens: the texts.
    preferred_ids: ids to give some of them, where they are free.
    """
    texts = check_special_token_texts(special_tokens)
    wanted = {encode_special_token(text): text for text in texts}
    known = set(texts)
    ids = {wanted[token]: id for id, token in vocab.items() if token in wanted}
    ids.update({text: id for text, id in (preferred_ids or {}).items() if text in known})
    next_id = max([-1, *vocab, *ids.values()]) + 1
    for text in texts:
        if text not in ids:
            ids[text] = next_id
            next_id += 1
    return {text: ids[text] for text in texts}


def check_special_token_texts(special_tokens: Iterable[str]) -> list[str]:
    """Return the texts as a list; an empty one or one given twice is a TokenizerError."""
    if isinstance(special_tokens, str):
        raise TokenizerError(
            f"special tokens are a list of texts, not the single text {special_tokens!r}; "
            f"write [{special_tokens!r}]"
        )
    texts = list(special_tokens)
    for number, text in enumerate(texts, start=1):
        if not text:
            raise TokenizerError(
                f"special token {number} of {len(texts)} is empty; a special token needs at least "
                f"one character"
            )
    if len(set(texts)) != len(texts):
        seen: set[str] = set()
        for text in texts:
            if text in seen:
                raise TokenizerError(f"the special token {text!r} is given twice; give it once")
            seen.add(text)
    return texts


def count_merges(vocab_size: int, num_special_tokens: int) -> int:
    """How many merges fill a vocabulary up; a size that cannot be is a TokenizerError.

    vocab_size: ids in all.
    num_special_tokens: how many of them are special tokens.
    """
    smallest = 256 + num_special_tokens
    if vocab_size < smallest:
        raise TokenizerError(
            f"vocab_size {vocab_size} is too small: the 256 bytes and {num_special_tokens} special "
            f"tokens alone take {smallest}"
        )
    if vocab_size > _MAX_VOCAB_SIZE:
        raise TokenizerError(
            f"vocab_size {vocab_size} is more than the {_MAX_VOCAB_SIZE} that 64 bits count: "
            f"choose a smaller one"
        )
    return vocab_size - smallest


def encode_special_token(text: str) -> bytes:
    """The bytes of a special token; text that has none in UTF-8 is a TokenizerError."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise TokenizerError(
            f"the special token {text!r} has a lone surrogate, which UTF-8 cannot write; "
            f"use another text"
        ) from None


def _little_endian(numbers: Iterable[int]) -> bytes:
    packed = array("q", numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
