"""Read tiktoken's ranks: per line a token in base64 and its rank, which is its id and its priority.

The file has neither split pattern nor special tokens; for published files we know them by content
hash. The merges are recovered from the ranks.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence
from pathlib import Path

from groundup.errors import TokenizerError
from groundup.files import hash_bytes
from groundup.tokenizer import native
from groundup.tokenizer.definition import (
    SpecialTokens,
    TokenizerDefinition,
    add_to_vocab,
    assign_special_tokens,
)
from groundup.tokenizer.formats.json_files import describe_source
from groundup.tokenizer.patterns import CL100K, GPT2, LLAMA3, O200K, PATTERN_NAMES, QWEN2, Pattern

_FIRST_LINE = re.compile(rb"\s*[A-Za-z0-9+/]+={0,2} \d+\s*(\n|$)")

_RESERVED = [f"<|reserved_special_token_{number}|>" for number in range(251)]
_LLAMA3_TEXTS = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    *_RESERVED[:4],
    "<|start_header_id|>",
    "<|end_header_id|>",
    _RESERVED[4],
    "<|eot_id|>",
    *_RESERVED[5:],
]
_LLAMA3_TOKENS = {text: id for id, text in enumerate(_LLAMA3_TEXTS, 128000)}
_QWEN_TEXTS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_QWEN_TEXTS += [f"<|extra_{number}|>" for number in range(205)]
_QWEN_TOKENS = {text: id for id, text in enumerate(_QWEN_TEXTS, 151643)}
_GPT2_TOKENS = {"<|endoftext|>": 50256}
_CL100K_TOKENS = {
    "<|endoftext|>": 100257,
    "<|fim_prefix|>": 100258,
    "<|fim_middle|>": 100259,
    "<|fim_suffix|>": 100260,
    "<|endofprompt|>": 100276,
}
_O200K_TOKENS = {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}
# r50k_base, p50k_base, cl100k_base, o200k_base, Llama 3, Qwen.
_PUBLISHED: dict[str, tuple[Pattern, dict[str, int]]] = {
    "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930": (GPT2, _GPT2_TOKENS),
    "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069": (GPT2, _GPT2_TOKENS),
    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7": (CL100K, _CL100K_TOKENS),
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d": (O200K, _O200K_TOKENS),
    "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55": (LLAMA3, _LLAMA3_TOKENS),
    "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186": (QWEN2, _QWEN_TOKENS),
}


def is_ranks_file(data: bytes) -> bool:
    """Whether the first line is base64 and a number."""
    return _FIRST_LINE.match(data[:4096]) is not None


def read(
    data: bytes, path: Path, pattern: Pattern | None, special_tokens: SpecialTokens | None
) -> TokenizerDefinition:
    """Read ranks; `pattern` is required unless the file is a published one."""
    known = hash_bytes(data).removeprefix("sha256:")
    known_pattern, known_ids = _PUBLISHED.get(known, (None, {}))
    pattern = pattern or known_pattern
    if pattern is None:
        raise TokenizerError(
            f"the ranks file {path} has no split pattern and is not a published one; "
            f"give the pattern: one of {', '.join(PATTERN_NAMES)}, or a regular expression"
        )
    vocab = _parse_ranks(data, path)
    if special_tokens is None:
        special_tokens = known_ids
    special_ids = assign_special_tokens(vocab, special_tokens, known_ids)
    tokens = list(vocab.values())
    pairs = recover_merges(tokens)
    unreachable = any(
        left < 0 and len(token) > 1 for token, (left, _) in zip(tokens, pairs, strict=True)
    )
    return TokenizerDefinition(
        vocab=add_to_vocab(vocab, special_ids),
        merges=[(tokens[left], tokens[right]) for left, right in pairs if left >= 0],
        special_tokens=special_ids,
        pattern=pattern,
        # tiktoken always looks up the whole pre-token first. If the merges produce every token,
        # that changes nothing; leaving it out then gives the same content id in all formats.
        whole_words=unreachable,
        lineage=describe_source("tiktoken", path, data),
    ).validate()


def recover_merges(tokens: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return the pair that merges into each token, or (-1, -1); see `recover_merges_reference`."""
    buffer = native.recover_merges(list(tokens))
    flat = memoryview(buffer).cast("B").cast("i").tolist()
    return list(zip(flat[::2], flat[1::2], strict=True))


def _parse_ranks(data: bytes, path: Path) -> dict[int, bytes]:
    vocab: dict[int, bytes] = {}
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            encoded, digits = line.split()
            token, rank = binascii.a2b_base64(encoded, strict_mode=True), int(digits)
        except ValueError:
            token, rank = b"", -1
        if not token or rank < 0 or rank in vocab:
            raise TokenizerError(
                f"line {number} of the ranks file {path} is {line[:60]!r}; it should be a token in "
                f"base64, a space and a unique rank: the file was truncated or changed"
            )
        vocab[rank] = token
    return dict(sorted(vocab.items()))
