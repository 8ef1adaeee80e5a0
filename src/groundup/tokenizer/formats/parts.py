"""What several formats share: whole files, strict JSON, added special tokens."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from groundup.errors import TokenizerError
from groundup.files import hash_bytes
from groundup.tokenizer.definition import (
    TokenizerDefinition,
    assign_special_tokens,
    encode_special_token,
)
from groundup.tokenizer.patterns import Pattern


def read_file(path: Path) -> bytes:
    """The bytes of a tokenizer file; a missing, unreadable or empty one is a TokenizerError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise TokenizerError(f"the tokenizer file {path} does not exist; check the path") from None
    except OSError as error:
        raise TokenizerError(
            f"the tokenizer file {path} cannot be read: {error.strerror}; check its permissions"
        ) from None
    if not data.strip():
        raise TokenizerError(f"the tokenizer file {path} is empty; make it or fetch it again")
    return data


def parse_json(data: bytes, path: Path) -> dict[str, Any]:
    """Read a JSON object whose keys are all different."""
    if data.lstrip()[:1] not in (b"{", b"\xef"):
        raise TokenizerError(
            f"{path} is not a tokenizer file we know: neither JSON nor lines of base64 and a rank; "
            f"it begins {data[:16]!r}"
        )
    try:
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_unique_keys)
    except UnicodeDecodeError as error:
        raise TokenizerError(
            f"the tokenizer file {path} is not UTF-8 at byte {error.start}; it is damaged, "
            f"make it or fetch it again"
        ) from None
    except json.JSONDecodeError as error:
        raise TokenizerError(
            f"the tokenizer file {path} is not whole JSON ({error.msg} at line {error.lineno}, "
            f"column {error.colno}): it was cut short or changed; make it or fetch it again"
        ) from None
    except RecursionError:
        raise TokenizerError(f"the JSON of {path} is nested too deeply for a tokenizer") from None
    except ValueError:
        # Python reads no integer of more than a few thousand digits.
        raise TokenizerError(
            f"the tokenizer file {path} has a number of thousands of digits; it is damaged, make "
            f"it or fetch it again"
        ) from None
    except _DuplicateKeyError as error:
        raise TokenizerError(
            f"the tokenizer file {path} has {error.key!r} twice in one object; each may occur once"
        ) from None
    if not isinstance(value, dict):
        raise TokenizerError(f"{path} is not a JSON object, so it is not a tokenizer file we know")
    return value


def require(value: Mapping[str, Any], key: str, kind: type, path: Path) -> Any:
    """The entry `key` of a JSON object; a missing one or another kind is a TokenizerError."""
    entry = value.get(key)
    if not isinstance(entry, kind) or (kind is int and isinstance(entry, bool)):
        found = f"is {excerpt(entry)}" if key in value else "is missing"
        raise TokenizerError(
            f"{key!r} in the tokenizer file {path} {found}; it should be a JSON {_JSON_NAMES[kind]}"
        )
    return entry


_JSON_NAMES = {
    dict: "object",
    list: "array",
    str: "string",
    int: "integer",
    bool: "true or false",
}


def add_special_tokens(
    definition: TokenizerDefinition,
    special_tokens: Mapping[str, int] | Iterable[str] | None,
    pattern: Pattern | None = None,
) -> TokenizerDefinition:
    """The definition with these special tokens too and, if one is given, with this pattern."""
    if special_tokens is None and pattern is None:
        return definition
    added = resolve_special_tokens(
        definition.vocab, special_tokens or (), definition.special_tokens
    )
    special = {**definition.special_tokens, **added}
    return dataclasses.replace(
        definition,
        vocab=with_special_tokens(definition.vocab, special),
        special_tokens=special,
        pattern=pattern or definition.pattern,
    ).validate()


def resolve_special_tokens(
    vocab: Mapping[int, bytes],
    special_tokens: Mapping[str, int] | Iterable[str],
    preferred_ids: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Special tokens with their ids: as the mapping says, or as found or appended for a list."""
    if isinstance(special_tokens, Mapping):
        return dict(special_tokens)
    return assign_special_tokens(vocab, special_tokens, preferred_ids)


def with_special_tokens(
    vocab: Mapping[int, bytes], special_tokens: Mapping[str, int]
) -> dict[int, bytes]:
    """The vocabulary with the special tokens it lacks; `validate` sees ids taken twice."""
    missing = {
        id: encode_special_token(text) for text, id in special_tokens.items() if id not in vocab
    }
    return in_order_of_ids({**vocab, **missing})


def in_order_of_ids(vocab: dict[int, bytes]) -> dict[int, bytes]:
    """The same vocabulary with its ids rising, as every reader leaves it."""
    ids = list(vocab)
    in_order = sorted(ids)
    return vocab if ids == in_order else {id: vocab[id] for id in in_order}


def describe_source(format_name: str, path: Path, data: bytes) -> dict[str, Any]:
    """The lineage of a tokenizer that was read from a file of another project."""
    return {"source": {"format": format_name, "file": path.name, "content_id": hash_bytes(data)}}


def excerpt(value: Any) -> str:
    """A value as an error shows it: not longer than a line."""
    try:
        text = repr(value)
    except RecursionError:
        return "nested too deep to be shown"
    return text if len(text) <= 60 else text[:57] + "..."


class _DuplicateKeyError(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKeyError(key)
            seen.add(key)
    return value
