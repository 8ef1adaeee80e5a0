"""Read tokenizer files: bytes, JSON objects, and entries of a required type."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groundup.errors import TokenizerError
from groundup.files import hash_bytes, read_plain_file

_JSON_NAMES = {dict: "object", list: "array", str: "string", int: "integer", bool: "boolean"}


def read_file(path: Path, inside: Path | None = None) -> bytes:
    """Return the bytes of a tokenizer file; raise TokenizerError if it cannot be read.

    inside: the folder that symbolic links must stay in, for files the user did not name.
    """
    try:
        return read_plain_file(path, inside)
    except OSError as error:
        raise TokenizerError(
            f"the tokenizer file {path} cannot be read: {error.strerror}; check the path"
        ) from None


def parse_json(data: bytes, path: Path) -> dict[str, Any]:
    """Parse a JSON object."""
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        # Not UTF-8, invalid or too deeply nested JSON, or a number with thousands of digits.
        raise TokenizerError(
            f"the tokenizer file {path} is neither a JSON object nor lines of base64 and a rank "
            f"({error}); if it was truncated, create or download it again"
        ) from None
    return require({"content": value}, "content", dict, path)  # type: ignore[no-any-return]


def require(value: Mapping[str, Any], key: str, kind: type, path: Path) -> Any:
    """Return the entry `key`; raise TokenizerError if it is missing or not of type `kind`."""
    entry = value.get(key)
    if not isinstance(entry, kind) or (kind is int and isinstance(entry, bool)):
        found = f"is {excerpt(entry)}" if key in value else "is missing"
        raise TokenizerError(
            f"{key!r} in the tokenizer file {path} {found}; it should be a JSON {_JSON_NAMES[kind]}"
        )
    return entry


def describe_source(format_name: str, path: Path, data: bytes) -> dict[str, Any]:
    """Return the lineage of a tokenizer imported from another project's file."""
    return {"source": {"format": format_name, "file": path.name, "content_id": hash_bytes(data)}}


def excerpt(value: Any) -> str:
    """Format a value for an error message, in at most 60 characters."""
    return reprlib.repr(value)[:60]
