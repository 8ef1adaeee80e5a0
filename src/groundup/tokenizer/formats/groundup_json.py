"""Our own tokenizer file: one readable JSON object that holds all of a definition.

Tokens are in GPT-2's byte spelling, one a line: the index of one in `vocabulary` is its id. The
last line is a hash of all text before it, so a whole file is known at once and needs no second look
at its parts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from groundup.errors import TokenizerError
from groundup.files import hash_bytes, write_bytes_atomic
from groundup.tokenizer.byte_spelling import spell_tokens
from groundup.tokenizer.definition import TokenizerDefinition
from groundup.tokenizer.formats.parts import require
from groundup.tokenizer.formats.spelled import read_spelled_list, read_spelled_merges, spell_merges
from groundup.tokenizer.patterns import find_staged_pattern

FORMAT = "groundup-tokenizer"
VERSION = 1

_CHECKSUM_MARK = b',\n"checksum": '


def recognise(value: dict[str, Any]) -> bool:
    """Whether a JSON object says it is ours."""
    return value.get("format") == FORMAT


def read(value: dict[str, Any], data: bytes, path: Path) -> TokenizerDefinition:
    """Read our JSON object; a newer version or a content that does not match its id is refused."""
    _check_version(require(value, "version", int, path), path)
    pattern = require(value, "pattern", dict, path)
    stages = require(pattern, "stages", list, path)
    if not stages or not all(isinstance(stage, str) for stage in stages):
        raise TokenizerError(
            f"the pattern stages in {path} are {stages!r}; they are a list of texts"
        )
    special_tokens = require(value, "special_tokens", dict, path)
    for text, id in special_tokens.items():
        if type(id) is not int:
            raise TokenizerError(
                f"the special token {text!r} in {path} has id {id!r}; give a number"
            )
    vocab, token_of = read_spelled_list(require(value, "vocabulary", list, path), path)
    definition = TokenizerDefinition(
        vocab=vocab,
        merges=read_spelled_merges(require(value, "merges", list, path), token_of, path),
        special_tokens=special_tokens,
        pattern=find_staged_pattern(tuple(stages)),
        whole_words=require(value, "whole_words", bool, path),
        lineage=require(value, "lineage", dict, path),
        chat_template=(
            require(value, "chat_template", str, path) if "chat_template" in value else None
        ),
    )
    content_id = require(value, "content_id", str, path)
    if _checksum_holds(data):
        return definition.trust(content_id)
    if definition.content_id() != content_id:
        raise TokenizerError(
            f"the content of the tokenizer file {path} does not match its content id "
            f"{content_id[:19]}…: it was changed after it was written; restore it, or train or "
            f"convert it again"
        )
    return definition.validate()


def write(definition: TokenizerDefinition, path: Path) -> list[Path]:
    """Write the definition as our JSON."""
    fields = {
        "format": _dump(FORMAT),
        "version": _dump(VERSION),
        "content_id": _dump(definition.content_id()),
        "vocab_size": _dump(definition.vocab_size),
        "pattern": _dump({"name": definition.pattern.name, "stages": definition.pattern.stages}),
        "whole_words": _dump(definition.whole_words),
        "lineage": _dump(definition.lineage),
        "special_tokens": _dump_lines(definition.special_tokens),
        **(
            {"chat_template": _dump(definition.chat_template)}
            if definition.chat_template is not None
            else {}
        ),
        "merges": _dump_lines(spell_merges(definition)),
        "vocabulary": _dump_lines(_spell_in_place(definition)),
    }
    lines = ",\n".join(f'"{key}": {text}' for key, text in fields.items())
    data = ("{\n" + lines).encode()
    checksum = _dump(hash_bytes(data)).encode()
    write_bytes_atomic(path, data + _CHECKSUM_MARK + checksum + b"\n}\n")
    return [path]


def _check_version(version: int, path: Path) -> None:
    if version > VERSION:
        raise TokenizerError(
            f"the tokenizer file {path} has format version {version}, and this groundup reads up "
            f"to version {VERSION}; upgrade groundup"
        )
    if version < 1:
        raise TokenizerError(
            f"the tokenizer file {path} has format version {version}, but they start at 1; "
            f"make it or fetch it again"
        )


def _checksum_holds(data: bytes) -> bool:
    text, mark, rest = data.rpartition(_CHECKSUM_MARK)
    return bool(mark) and rest == _dump(hash_bytes(text)).encode() + b"\n}\n"


def _spell_in_place(definition: TokenizerDefinition) -> list[str | None]:
    spelled: list[str | None] = [None] * definition.vocab_size
    spellings = spell_tokens(definition.vocab.values())
    for id, spelling in zip(definition.vocab, spellings, strict=True):
        spelled[id] = spelling
    return spelled


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _dump_lines(value: Any) -> str:
    # The fast encoder of `json` cannot indent, but its separators may hold line ends.
    text = json.dumps(value, ensure_ascii=False, separators=(",\n", ": "))
    return f"{text[0]}\n{text[1:-1]}\n{text[-1]}" if value else text
