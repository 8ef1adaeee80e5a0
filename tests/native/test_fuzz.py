"""Fuzzing the native core: any input gives a result or a clean error, never a crash.

`make check` tries a few hundred inputs; `make fuzz` runs for minutes with a core compiled with
sanitizers, where an out-of-bounds read always crashes.
"""

import os
import random
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from groundup import _native
from groundup.errors import GroundupError
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.definition import TokenizerDefinition
from groundup.tokenizer.patterns import CL100K, DEEPSEEK, GPT2, LLAMA3, O200K, QWEN2
from groundup.tokenizer.reference import train_bpe_reference

_PATTERNS = (GPT2, CL100K, LLAMA3, O200K, QWEN2, DEEPSEEK)
_PIECES = (
    *"a b A Z s ' 's 'LL 're 1 22 333 ! ... é É ß ǅ ʰ 雨 字 🙂 ٣ ½ Ⅷ _ - / \\ < > |".split(),
    *" \n\t\u00a0\u3000\u2028\u200d\u0301\0\x85\ufeff\u0e33\uac01\U0010ffffſKİ",
    *("  ", "\r\n", "\U0001f469\u200d\U0001f680", "the cat", " sat on", " the mat"),
    *("<|endoftext|>", "<|end", "|>", "<|a|><|a|>", "ab" * 70),
)
# Exceptions that an invalid call may raise; anything else, especially a signal, is a failure.
_CLEAN = (GroundupError, TypeError, ValueError, OverflowError, LookupError, BufferError, OSError)


def make_text(rng: random.Random) -> str:
    """Pieces on which scanners have failed, and arbitrary code points."""
    parts = [
        rng.choice(_PIECES) if rng.random() < 0.85 else _any_character(rng)
        for _ in range(rng.randrange(60))
    ]
    # The reference is quadratic in the length of a pre-token.
    return "".join(part * rng.choice((1, 1, 1, 2, 3, 40 // len(part) + 1)) for part in parts)


def _any_character(rng: random.Random) -> str:
    code = rng.randrange(rng.choice((0x80, 0x800, 0x3000, 0x110000)))
    return chr(code) if not 0xD800 <= code < 0xE000 else "?"


def make_bytes(rng: random.Random) -> bytes:
    """Text, usually with invalid UTF-8 in it."""
    data = make_text(rng).encode()
    for _ in range(rng.randrange(4)):
        place = rng.randrange(len(data) + 1)
        odd = rng.choice((b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"))
        data = data[:place] + rng.choice((odd, b"")) + data[place + rng.randrange(2) :]
    return data


@cache
def _tokenizer(number: int) -> Tokenizer:
    """One of twenty tokenizers, for all patterns, with special tokens that share prefixes."""
    rng = random.Random(f"tokenizer {number}")
    specials = ["<|endoftext|>", "<|end", "<|a|>", "<|a|><|a|>", " ", "a", "雨"]
    specials = rng.sample(specials, number % 4)
    size, chosen = 256 + len(specials) + rng.choice((0, 5, 60)), _PATTERNS[number % len(_PATTERNS)]
    text = "".join(make_text(rng) for _ in range(20))
    vocab, merges = train_bpe_reference(text, size, specials, chosen)
    given = {token: id for id, token in vocab.items()}
    ids = {special: given[special.encode()] for special in specials}
    definition = TokenizerDefinition(vocab, merges, ids, chosen, whole_words=rng.random() < 0.3)
    return Tokenizer.from_definition(definition)


def native_core(rng: random.Random) -> None:
    """Call it with any bytes, ids, bounds and tokens; tests/tokenizer checks the results."""
    data, tokenizer = make_bytes(rng), _tokenizer(rng.randrange(20))
    encoder = tokenizer._encoder
    for encode in (encoder.encode, encoder.encode_array, encoder.encode_stream):
        _call(encode, data)
    indices = sorted(rng.randrange(len(data) + 1) for _ in range(2 * rng.randrange(4)))
    bounds = np.array(indices, np.int64).reshape(-1, 2)
    if len(bounds) and rng.random() < 0.4:
        odd = rng.choice((-1, len(data) + 1, 2**31, 2**62, -(2**63), 2**63 - 1))
        bounds[rng.randrange(len(bounds)), rng.randrange(2)] = odd
    bounds = bounds if rng.random() < 0.9 else bounds[:, ::-1]
    _call(encoder.encode_documents, data, bounds, rng.choice((1, 2, 0, -1)), 5)
    _call(_native.hash_documents, data, bounds)
    chosen = rng.choice(_PATTERNS)
    for vectors in ("", *_native.vectors()[1]):
        _call(_native.Splitter(chosen.stages, (), chosen.name, vectors).split, data)
    ids = [rng.randrange(tokenizer.vocab_size) for _ in range(30)]
    odd_id = rng.choice((-1, tokenizer.vocab_size, 2**31, 2**32, 2**64, None, "a", 0.5))
    for numbers in ([*ids, odd_id], np.array(ids, np.int64)[::-2], np.array([2**31, 2**63 - 1])):
        _call(tokenizer.decode, numbers)
        _call(encoder.decode_bytes, numbers)
    separators = [b"<|endoftext|>", b"<|a|>", b"a", b"\n", b"<|a|><|a|>"]
    for given in (rng.sample(separators, 2), rng.choice(([], [b""], ["a"], [b"\xff"], None))):
        _call(_native.find_documents, data, given)
    _native.find_invalid_utf8(data)
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += {bytes(rng.choices(b"abc", k=rng.randrange(2, 6))): None for _ in range(40)}
    if rng.random() < 0.2:
        tokens.insert(rng.randrange(len(tokens)), rng.choice((b"", b"a")))
    merges = _call(_native.recover_merges, tokens)
    splitter = _native.Splitter(chosen.stages, (), chosen.name)
    made = _call(
        _native.Encoder, tokens, merges, [(b"<|a|>", rng.choice((300, -1)))], splitter, True
    )
    if made is not None:
        _call(made.encode, make_text(rng))


def _call(function: Callable[..., Any], *arguments: object) -> Any:
    """Make a call that may be rejected."""
    try:
        return function(*arguments)
    except _CLEAN:
        return None


@pytest.mark.check
def test_any_input_gives_a_result_or_a_clean_error() -> None:
    seed, end = int(os.environ.get("SEED", 1)), 60 * float(os.environ.get("FUZZ_MINUTES", 0.1))
    begin, number = time.monotonic(), 0
    while time.monotonic() < begin + end:
        number += 1
        native_core(random.Random(f"{seed}/{number}"))
