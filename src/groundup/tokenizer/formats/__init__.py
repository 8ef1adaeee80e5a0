"""Tokenizer files: ours and those of GPT-2, tiktoken and Hugging Face, read and written.

A file is known by what is in it, never by its name. Each format has its own module here; the
meaning of what they read is `TokenizerDefinition`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from groundup.errors import TokenizerError, did_you_mean
from groundup.tokenizer.definition import TokenizerDefinition
from groundup.tokenizer.formats import gpt2_files, groundup_json, huggingface, tiktoken_ranks
from groundup.tokenizer.formats.gpt2_files import read_gpt2_files
from groundup.tokenizer.formats.parts import add_special_tokens, parse_json, read_file
from groundup.tokenizer.patterns import Pattern, find_pattern

FormatName = Literal["groundup", "huggingface", "tiktoken", "gpt2"]

_WRITERS = {
    "groundup": groundup_json.write,
    "huggingface": huggingface.write,
    "tiktoken": tiktoken_ranks.write,
    "gpt2": gpt2_files.write,
}
FORMAT_NAMES = tuple(_WRITERS)

__all__ = ["FORMAT_NAMES", "FormatName", "read_definition", "read_gpt2_files", "write_definition"]


def read_definition(
    path: str | os.PathLike[str],
    *,
    pattern: str | Pattern | None = None,
    special_tokens: Mapping[str, int] | Iterable[str] | None = None,
) -> TokenizerDefinition:
    """Read a tokenizer file of any known format.

    A pattern given here replaces the file's. Special tokens given here come on top of the
    file's own, new ones after the last id; a mapping says the ids too.

    path: the file, or a folder that holds one.
    pattern: a name or a regular expression.
    special_tokens: texts, or texts with their ids.
    """
    path = Path(path)
    chosen = find_pattern(pattern) if pattern is not None else None
    if path.is_dir():
        path = _find_in_folder(path)
    data = read_file(path)
    if tiktoken_ranks.recognise(data):
        return tiktoken_ranks.read(data, path, chosen, special_tokens)
    value = parse_json(data, path)
    if groundup_json.recognise(value):
        definition = groundup_json.read(value, data, path)
    elif huggingface.recognise(value):
        definition = huggingface.read(value, path)
    elif gpt2_files.recognise(value):
        merges_path = gpt2_files.find_merges(path)
        return read_gpt2_files(path, merges_path, special_tokens, pattern=chosen)
    else:
        raise TokenizerError(
            f"{path} is JSON but no tokenizer file we know (groundup's, Hugging Face's "
            f"tokenizer.json or GPT-2's vocab.json); its keys are "
            f"{', '.join(map(repr, list(value)[:5])) or 'none'}"
        )
    return add_special_tokens(definition, special_tokens, chosen)


def write_definition(
    definition: TokenizerDefinition,
    path: str | os.PathLike[str],
    format: FormatName = "groundup",
) -> list[Path]:
    """Write a tokenizer file, or refuse what the format cannot express; gives the paths.

    definition: what to write.
    path: the file; for gpt2 a folder, or the vocabulary file.
    format: groundup, huggingface, tiktoken or gpt2.
    """
    writer = _WRITERS.get(format)
    if writer is None:
        raise TokenizerError(
            f"unknown tokenizer format {format!r}: {did_you_mean(format, FORMAT_NAMES)}"
        )
    return writer(definition.validate(), Path(path))


def _find_in_folder(folder: Path) -> Path:
    for name in ("tokenizer.json", "vocab.json"):
        if (folder / name).is_file():
            return folder / name
    raise TokenizerError(
        f"the folder {folder} has neither a tokenizer.json nor a vocab.json; name the tokenizer "
        f"file itself"
    )
