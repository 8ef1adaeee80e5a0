"""GPT-2's pair of files: the vocabulary as JSON {token: id}, and one merge per line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from groundup.errors import TokenizerError
from groundup.tokenizer.definition import (
    SpecialTokens,
    TokenizerDefinition,
    add_to_vocab,
    assign_special_tokens,
)
from groundup.tokenizer.formats.json_files import describe_source, parse_json, read_file
from groundup.tokenizer.formats.spelling import read_merges, read_vocab
from groundup.tokenizer.patterns import GPT2, Pattern


def find_merges(vocab_path: Path) -> Path:
    """Return the merges file next to a vocabulary file."""
    for name in ("merges.txt", "vocab.bpe"):
        if vocab_path.with_name(name).is_file():
            return vocab_path.with_name(name)
    raise TokenizerError(f"{vocab_path} is a vocabulary without merges: put merges.txt next to it")


def read_gpt2_files(
    vocab_path: str | os.PathLike[str],
    merges_path: str | os.PathLike[str],
    special_tokens: SpecialTokens | None = None,
    *,
    pattern: Pattern | None = None,
) -> TokenizerDefinition:
    """Read both files; special tokens missing from the vocabulary are appended to it."""
    vocab_path, merges_path = Path(vocab_path), Path(merges_path)
    vocab_data, merges_data = read_file(vocab_path), read_file(merges_path, merges_path.parent)
    spelled = parse_json(vocab_data, vocab_path)
    if not isinstance(special_tokens, Mapping):
        special_tokens = list(special_tokens or ())
    vocab, token_of = read_vocab(spelled, vocab_path, plain_texts=special_tokens)
    special_ids = assign_special_tokens(vocab, special_tokens)
    return TokenizerDefinition(
        vocab=add_to_vocab(vocab, special_ids),
        merges=read_merges(_merge_lines(merges_data, merges_path), token_of, merges_path),
        special_tokens=special_ids,
        pattern=pattern or GPT2,
        lineage=describe_source("gpt2", vocab_path, vocab_data),
    ).validate()


def _merge_lines(data: bytes, path: Path) -> list[str]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"the merges file {path} is damaged: {error}") from None
    # Not splitlines: a spelled token may contain U+0085.
    lines = text.replace("\r\n", "\n").rstrip("\n").split("\n")
    return lines[1:] if lines[0].startswith("#version") else lines
