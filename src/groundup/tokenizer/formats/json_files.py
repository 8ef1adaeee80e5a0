"""Reading tokenizer files: whole files, strict JSON, entries of a known type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groundup.errors import TokenizerError
from groundup.files import hash_bytes

_JSON_NAMES = {
    dict: "object",
    list: "array",
    str: "string",
    int: "integer",
    bool: "true or false",
}


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

    def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise TokenizerError(
                f"the tokenizer file {path} has {twice!r} twice in one object; remove one"
            )
        return value

    if data.lstrip()[:1] not in (b"{", b"\xef"):
        raise TokenizerError(
            f"{path} is not a tokenizer file we know: neither a JSON object nor lines of base64 "
            f"and a rank; it begins {data[:16]!r}"
        )
    try:
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=unique_keys)
    except RecursionError:
        raise TokenizerError(f"the JSON of {path} is nested too deeply for a tokenizer") from None
    except ValueError as error:
        # Bytes that are not UTF-8, broken JSON, or a number of thousands of digits.
        raise TokenizerError(
            f"the tokenizer file {path} is not valid JSON ({error}): it was cut short or changed; "
            f"make it or fetch it again"
        ) from None
    assert isinstance(value, dict)
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


def describe_source(format_name: str, path: Path, data: bytes) -> dict[str, Any]:
    """The lineage of a tokenizer read from another project's file."""
    return {"source": {"format": format_name, "file": path.name, "content_id": hash_bytes(data)}}


def excerpt(value: Any) -> str:
    """A value as an error shows it, in at most 60 characters."""
    try:
        text = repr(value)
    except RecursionError:
        return "nested too deeply to be shown"
    return text if len(text) <= 60 else text[:57] + "..."
