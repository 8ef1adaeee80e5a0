"""GPT-2's byte spelling: maps each byte to a visible character, so that text files can hold tokens.

A byte that is a visible Latin-1 character maps to that character; the other 68 (control characters,
space, delete, no-break space, soft hyphen) map in order to U+0100 and up: a space becomes `Ġ`.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain, pairwise, repeat
from pathlib import Path
from typing import Any, TypeVar

from groundup.errors import TokenizerError
from groundup.tokenizer.definition import TokenizerDefinition, encode_special_token
from groundup.tokenizer.formats.json_files import excerpt

_Spelled = TypeVar("_Spelled", str, bytes)

_VISIBLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_REPLACEMENTS = iter(range(0x100, 0x200))
# A 256-character string defines a single-byte codec in Python, so both directions run in C over a
# whole vocabulary at once.
ALPHABET = "".join(chr(byte if byte in _VISIBLE else next(_REPLACEMENTS)) for byte in range(256))
_ENCODING_MAP = codecs.charmap_build(ALPHABET)


def spell_bytes(data: bytes) -> str:
    """Spell bytes as visible characters, one per byte."""
    return codecs.charmap_decode(data, "strict", ALPHABET)[0]


def read_spelling(text: str) -> bytes:
    """Invert `spell_bytes`; raise UnicodeEncodeError for a character outside the alphabet."""
    return codecs.charmap_encode(text, "strict", _ENCODING_MAP)[0]


def spell_tokens(tokens: Iterable[bytes]) -> list[str]:
    tokens = list(tokens)
    return _cut(spell_bytes(b"".join(tokens)), tokens)


def read_tokens(spellings: list[str], path: Path) -> list[bytes]:
    """Convert spelled tokens to bytes, all at once: each character is one byte, so the lengths are
    the same."""
    try:
        return _cut(read_spelling("".join(spellings)), spellings)
    except UnicodeEncodeError:
        spelling = next(one for one in spellings if not set(ALPHABET).issuperset(one))
        raise TokenizerError(
            f"the token {spelling!r} in {path} is not in GPT-2's byte spelling; if it is a special "
            f"token, pass it in special_tokens"
        ) from None


def read_vocab(
    spelled: Mapping[str, Any], path: Path, plain_texts: Iterable[str] = ()
) -> tuple[dict[int, bytes], dict[str, bytes]]:
    """Read {spelled token: id}; return the vocabulary sorted by id and the bytes of each spelling.

    `plain_texts` are special tokens that the file has as plain text, not in GPT-2's spelling.
    """
    plain = {text for text in plain_texts if text in spelled}
    spellings = [spelling for spelling in spelled if spelling not in plain]
    token_of = dict(zip(spellings, read_tokens(spellings, path), strict=True))
    token_of |= {text: encode_special_token(text) for text in plain}
    spelling_of: dict[int, str] = {}
    for spelling, id in spelled.items():
        if type(id) is not int:
            raise TokenizerError(
                f"the token {spelling!r} in {path} has the id {excerpt(id)}; ids are integers"
            )
        if spelling_of.setdefault(id, spelling) != spelling:
            raise TokenizerError(
                f"the tokens {spelling_of[id]!r} and {spelling!r} in {path} share the id {id}"
            )
    return {id: token_of[spelling_of[id]] for id in sorted(spelling_of)}, token_of


def read_merges(
    merges: Sequence[Any], token_of: Mapping[str, bytes], path: Path
) -> list[tuple[bytes, bytes]]:
    """Read merges in the form "left right" or [left, right], spelled as in the vocabulary."""
    kinds = set(map(type, merges))
    parts: list[Any] = [None]
    if kinds == {str} and set(map(str.count, merges, repeat(" "))) == {1}:
        parts = " ".join(merges).split(" ")
    elif kinds <= {list} and set(map(len, merges)) <= {2}:
        parts = list(chain.from_iterable(merges))
    try:
        tokens = map(token_of.__getitem__, parts)
        return list(zip(tokens, tokens, strict=True))
    except (KeyError, ValueError, TypeError) as error:
        raise TokenizerError(
            f"a merge in {path} is not two tokens of the vocabulary, separated by one space or "
            f"as a list: {error!r:.200}"
        ) from None


def spell_vocab(definition: TokenizerDefinition, format_name: str) -> dict[str, int]:
    """Return the vocabulary as {spelled token: id}, with special tokens as plain text."""
    ordinary = definition.ordinary_tokens()
    spelled = dict(zip(spell_tokens(ordinary.values()), ordinary, strict=True))
    for text, id in definition.special_tokens.items():
        if text in spelled:
            raise TokenizerError(
                f"{format_name} files cannot hold the special token {text!r}: an ordinary token "
                f"has the same spelling; use groundup's own format"
            )
        spelled[text] = id
    return dict(sorted(spelled.items(), key=lambda item: item[1]))


def spell_merges(
    definition: TokenizerDefinition, spelled: Mapping[str, int] | None = None
) -> list[str]:
    """Return the merges as "left right"; if `spelled` is given, it must contain both tokens."""
    lefts = spell_tokens(left for left, _ in definition.merges)
    rights = spell_tokens(right for _, right in definition.merges)
    if spelled is not None and (special := {*lefts, *rights} - spelled.keys()):
        raise TokenizerError(
            f"this format cannot hold a merge of the special token {min(special)!r}; use "
            f"groundup's own format"
        )
    return [f"{left} {right}" for left, right in zip(lefts, rights, strict=True)]


def _cut(joined: _Spelled, parts: list[Any]) -> list[_Spelled]:
    bounds = accumulate(map(len, parts), initial=0)
    return [joined[begin:end] for begin, end in pairwise(bounds)]
