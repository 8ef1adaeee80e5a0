"""Our own tokenizer file: one readable JSON object with the whole definition.

Tokens are in GPT-2's byte spelling, one per line; a token's index in `vocabulary` is its id. The
last line is a checksum of the text before it: if it matches, validation is skipped.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from groundup.errors import TokenizerError
from groundup.files import hash_bytes, write_bytes_atomic
from groundup.tokenizer.definition import TokenizerDefinition
from groundup.tokenizer.formats.json_files import require
from groundup.tokenizer.formats.spelling import (
    read_merges,
    read_tokens,
    spell_merges,
    spell_tokens,
)
from groundup.tokenizer.patterns import find_staged_pattern

FORMAT = "groundup-tokenizer"
VERSION = 1

_CHECKSUM_MARK = b',\n"checksum": '


def read(value: dict[str, Any], data: bytes, path: Path) -> TokenizerDefinition:
    """Read our JSON object; raise TokenizerError for another version or a content id mismatch."""
    version = require(value, "version", int, path)
    if version != VERSION:
        raise TokenizerError(
            f"the tokenizer file {path} has format version {version}, but this groundup reads "
            f"{VERSION}: use the groundup that wrote it"
        )
    pattern = require(value, "pattern", dict, path)
    stages = require(pattern, "stages", list, path)
    behaviours = require({"behaviours": [], **pattern}, "behaviours", list, path)
    special_tokens = require(value, "special_tokens", dict, path)
    vocabulary = require(value, "vocabulary", list, path)
    spelling_of = {id: text for id, text in enumerate(vocabulary) if text is not None}
    for name, values, kind in (
        ("pattern", [*(stages or [None]), *behaviours], str),
        ("special_tokens", special_tokens.values(), int),
        ("vocabulary", spelling_of.values(), str),
    ):
        if set(map(type, values)) - {kind}:
            raise TokenizerError(f"an entry of {name!r} in {path} is not a {kind.__name__}")
    tokens = read_tokens(list(spelling_of.values()), path)
    token_of = dict(zip(spelling_of.values(), tokens, strict=True))
    definition = TokenizerDefinition(
        vocab=dict(zip(spelling_of, tokens, strict=True)),
        merges=read_merges(require(value, "merges", list, path), token_of, path),
        special_tokens=special_tokens,
        pattern=find_staged_pattern(tuple(stages), tuple(behaviours)),
        whole_words=require(value, "whole_words", bool, path),
        lineage=require(value, "lineage", dict, path),
        chat_template=require({"chat_template": "", **value}, "chat_template", str, path) or None,
    )
    content_id = require(value, "content_id", str, path)
    text, _, rest = data.rpartition(_CHECKSUM_MARK)
    if rest == _dump(hash_bytes(text)).encode() + b"\n}\n":
        return definition.trust(content_id)
    if definition.content_id != content_id:
        raise TokenizerError(
            f"the content of the tokenizer file {path} does not match its content id: it was "
            f"changed after it was written; restore it, or train it again"
        )
    return definition.validate()


def write(definition: TokenizerDefinition, path: Path) -> list[Path]:
    """Write a definition as our JSON object."""
    spellings = dict(zip(definition.vocab, spell_tokens(definition.vocab.values()), strict=True))
    template, pattern = definition.chat_template, definition.pattern
    behaviours = {"behaviours": pattern.behaviours} if pattern.behaviours else {}
    fields = {
        "format": _dump(FORMAT),
        "version": _dump(VERSION),
        "content_id": _dump(definition.content_id),
        "vocab_size": _dump(definition.vocab_size),
        "pattern": _dump({"name": pattern.name, "stages": pattern.stages, **behaviours}),
        "whole_words": _dump(definition.whole_words),
        "lineage": _dump(definition.lineage),
        "special_tokens": _dump_lines(definition.special_tokens),
        **({} if template is None else {"chat_template": _dump(template)}),
        "merges": _dump_lines(spell_merges(definition)),
        "vocabulary": _dump_lines([*map(spellings.get, range(definition.vocab_size))]),
    }
    lines = ",\n".join(f'"{key}": {text}' for key, text in fields.items())
    data = ("{\n" + lines).encode()
    checksum = _dump(hash_bytes(data)).encode()
    write_bytes_atomic(path, data + _CHECKSUM_MARK + checksum + b"\n}\n")
    return [path]


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _dump_lines(value: Any) -> str:
    # The fast C encoder of `json` cannot indent, but separators may contain newlines.
    text = json.dumps(value, ensure_ascii=False, separators=(",\n", ": "))
    return f"{text[0]}\n{text[1:-1]}\n{text[-1]}" if value else text
