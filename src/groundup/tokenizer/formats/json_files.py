"""Reading tokenizer files: whole files, JSON objects, entries of a known type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groundup.errors import TokenizerError
from groundup.files import hash_bytes, read_plain_file

_JSON_NAMES = {dict: "object", list: "array", str: "string", int: "integer", bool: "boolean"}


def read_file(path: Path, inside: Path | None = None) -> bytes:
    """The bytes of a tokenizer file; one that cannot be read is a TokenizerError.

    inside: the folder that a link may not lead out of, for files that nobody named.
    """
    try:
        return read_plain_file(path, inside)
    except OSError as error:
        raise TokenizerError(
            f"the tokenizer file {path} cannot be read: {error.strerror}; check the path"
        ) from None


def parse_json(data: bytes, path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        # Bytes that are not UTF-8, broken or endless JSON, or a number of thousands of digits.
        raise TokenizerError(
            f"the tokenizer file {path} is neither a JSON object nor lines of base64 and a rank "
            f"({error}); if it was cut short, make it or fetch it again"
        ) from None
    return require({"content": value}, "content", dict, path)  # type: ignore[no-any-return]


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
