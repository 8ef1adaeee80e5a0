"""Vocabularies and merges in GPT-2's byte spelling, as JSON and text files hold them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from groundup.errors import TokenizerError
from groundup.tokenizer.byte_spelling import read_spelled_tokens, read_spelling, spell_tokens
from groundup.tokenizer.definition import TokenizerDefinition, encode_special_token
from groundup.tokenizer.formats.parts import excerpt, in_order_of_ids


def read_spelled_vocab(
    spelled: Mapping[str, Any], path: Path, plain_texts: Iterable[str] = ()
) -> tuple[dict[int, bytes], dict[str, bytes]]:
    """Read {spelled token: id}; gives the vocabulary, and the bytes of each spelling.

    `plain_texts` are the special tokens that stand there as they are, not in GPT-2's spelling.
    """
    plain = {text for text in plain_texts if text in spelled}
    spellings = (
        [spelling for spelling in spelled if spelling not in plain] if plain else list(spelled)
    )
    token_of = dict(zip(spellings, _read_spellings(spellings, path), strict=True))
    for text in plain:
        token_of[text] = encode_special_token(text)
    if set(map(type, spelled.values())) - {int}:
        spelling = next(spelling for spelling, id in spelled.items() if type(id) is not int)
        raise TokenizerError(
            f"the token {spelling!r} in {path} has the id {excerpt(spelled[spelling])}; "
            f"ids are integers"
        )
    vocab = dict(zip(spelled.values(), map(token_of.__getitem__, spelled), strict=True))
    if len(vocab) != len(spelled):
        _raise_shared_id(spelled, path)
    return in_order_of_ids(vocab), token_of


def read_spelled_list(
    spellings: list[Any], path: Path
) -> tuple[dict[int, bytes], dict[str, bytes]]:
    """Read spelled tokens whose indices are their ids (null: no token); gives the same."""
    ids: Sequence[int] = range(len(spellings))
    if set(map(type, spellings)) != {str}:
        ids = [id for id, spelling in enumerate(spellings) if spelling is not None]
        spellings = [spellings[id] for id in ids]
        for id, spelling in zip(ids, spellings, strict=True):
            if not isinstance(spelling, str):
                raise TokenizerError(
                    f"the token with id {id} in {path} is {excerpt(spelling)}; it should be a "
                    f"string"
                )
    tokens = _read_spellings(spellings, path)
    return dict(zip(ids, tokens, strict=True)), dict(zip(spellings, tokens, strict=True))


def read_spelled_merges(
    merges: Sequence[Any], token_of: Mapping[str, bytes], path: Path, first_line: int | None = None
) -> list[tuple[bytes, bytes]]:
    """Read merges written as "left right" or [left, right], spelled as in the vocabulary."""
    # All at once where all is well, one by one to name the one where it is not.
    with contextlib.suppress(KeyError, ValueError, TypeError):
        parts = _split_merges(merges)
        tokens = map(token_of.__getitem__, parts)
        return list(zip(tokens, tokens, strict=True))
    for number, merge in enumerate(merges):
        where = f"merge {number + 1}" if first_line is None else f"line {first_line + number}"
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not (
            isinstance(parts, list)
            and len(parts) == 2
            and all(isinstance(part, str) for part in parts)
        ):
            raise TokenizerError(
                f"{where} of {path} is {excerpt(merge)}; a merge is two tokens with one space "
                f"between"
            )
        for part in parts:
            if part not in token_of:
                raise TokenizerError(
                    f"{where} of {path} ({parts[0]} + {parts[1]}) names the token {part!r}, which "
                    f"is not in the vocabulary; vocabulary and merges do not belong together"
                )
    raise AssertionError("a merge failed to read and then did not")


def spell_vocab(definition: TokenizerDefinition, format_name: str) -> dict[str, int]:
    """The vocabulary as {spelled token: id}, special tokens standing there as their plain text."""
    ordinary = definition.ordinary_tokens()
    spelled = dict(zip(spell_tokens(ordinary.values()), ordinary, strict=True))
    for text, id in definition.special_tokens.items():
        if text in spelled:
            raise TokenizerError(
                f"{format_name} files cannot tell the special token {text!r} from the ordinary "
                f"token that is spelled so; use groundup's own format"
            )
        spelled[text] = id
    return dict(sorted(spelled.items(), key=lambda item: item[1]))


def spell_merges(definition: TokenizerDefinition) -> list[str]:
    """The merges as lines of two spelled tokens."""
    lefts = spell_tokens(left for left, _ in definition.merges)
    rights = spell_tokens(right for _, right in definition.merges)
    return [f"{left} {right}" for left, right in zip(lefts, rights, strict=True)]


def check_merges_are_spelled(
    merges: list[str], spelled: Mapping[str, int], format_name: str
) -> None:
    """Refuse merges that use a special token whose plain text is not its spelling."""
    for merge in merges:
        for part in merge.split(" "):
            if part not in spelled:
                raise TokenizerError(
                    f"{format_name} files cannot hold the merge {merge!r}, because {part!r} is a "
                    f"special token there; use groundup's own format"
                )


def _split_merges(merges: Sequence[Any]) -> list[str]:
    kinds = set(map(type, merges))
    if kinds == {str} and set(map(str.count, merges, repeat(" "))) == {1}:
        return " ".join(merges).split(" ")
    if kinds <= {list} and set(map(len, merges)) <= {2}:
        return list(chain.from_iterable(merges))
    raise ValueError


def _read_spellings(spellings: list[str], path: Path) -> list[bytes]:
    with contextlib.suppress(UnicodeEncodeError):
        return read_spelled_tokens(spellings)
    for spelling in spellings:
        try:
            read_spelling(spelling)
        except UnicodeEncodeError as error:
            raise TokenizerError(
                f"the token {spelling!r} in {path} is not written in GPT-2's byte spelling "
                f"(character {spelling[error.start]!r}); if it is a special token, name it as one"
            ) from None
    raise AssertionError("a spelling failed to read and then did not")


def _raise_shared_id(spelled: Mapping[str, int], path: Path) -> None:
    first: dict[int, str] = {}
    for spelling, id in spelled.items():
        if id in first:
            raise TokenizerError(
                f"the tokens {first[id]!r} and {spelling!r} in {path} share the id {id}; "
                f"each needs its own"
            )
        first[id] = spelling
