"""Read tokenizer files, our own and those of GPT-2, tiktoken and Hugging Face; write some.

The format is detected from the content, never from the file name. Each format has a module that
converts it to and from a `TokenizerDefinition`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from groundup.errors import TokenizerError, did_you_mean
from groundup.tokenizer.definition import SpecialTokens, TokenizerDefinition
from groundup.tokenizer.formats import gpt2_files, groundup_json, huggingface, tiktoken
from groundup.tokenizer.formats.gpt2_files import read_gpt2_files
from groundup.tokenizer.formats.json_files import parse_json, read_file
from groundup.tokenizer.patterns import Pattern, find_pattern

FormatName = Literal["groundup", "huggingface"]

_WRITERS = {"groundup": groundup_json.write, "huggingface": huggingface.write}

__all__ = ["FormatName", "read_definition", "read_gpt2_files", "write_definition"]


def read_definition(
    path: str | os.PathLike[str],
    pattern: str | Pattern | None = None,
    special_tokens: SpecialTokens | None = None,
) -> TokenizerDefinition:
    """Read a tokenizer file of any known format.

    `pattern` replaces the file's. `special_tokens` are added to the file's own: new ones get ids
    after the last one, or those of a mapping.
    """
    path = Path(path)
    chosen = find_pattern(pattern) if pattern is not None else None
    folder = path if path.is_dir() else None
    if folder is not None:
        files = [path / name for name in ("tokenizer.json", "vocab.json")]
        path = next((file for file in files if file.is_file()), files[0])
    data = read_file(path, folder)
    if tiktoken.is_ranks_file(data):
        return tiktoken.read(data, path, chosen, special_tokens)
    value = parse_json(data, path)
    if set(map(type, value.values())) == {int}:
        merges_path = gpt2_files.find_merges(path)
        return read_gpt2_files(path, merges_path, special_tokens, pattern=chosen)
    if value.get("format") == groundup_json.FORMAT:
        definition = groundup_json.read(value, data, path)
    elif isinstance(value.get("model"), dict):
        definition = huggingface.read(value, path)
    else:
        raise TokenizerError(
            f"{path} is JSON, but not a known tokenizer file (groundup's, Hugging Face's "
            f"tokenizer.json or GPT-2's vocab.json)"
        )
    return definition.with_special_tokens(special_tokens, chosen)


def write_definition(
    definition: TokenizerDefinition,
    path: str | os.PathLike[str],
    format: FormatName = "groundup",
) -> list[Path]:
    """Write a tokenizer file and return the paths.

    Raises TokenizerError if the format cannot express the definition.
    """
    writer = _WRITERS.get(format)
    if writer is None:
        raise TokenizerError(f"unknown format {format!r}: {did_you_mean(format, _WRITERS)}")
    return writer(definition.validate(), Path(path))
