"""The native core, through every entry point: a result or a clean error, whatever it is given.

`make fuzz` runs it on a copy that is compiled under the sanitizers, where a read beyond an end is a
crash and not a matter of luck.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from harness import Case, bounded

from groundup import _native
from groundup.errors import GroundupError
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.definition import TokenizerDefinition
from groundup.tokenizer.patterns import CL100K, DEEPSEEK, GPT2, LLAMA3, O200K, QWEN2
from groundup.tokenizer.reference import train_bpe_reference

PATTERNS = (GPT2, CL100K, LLAMA3, O200K, QWEN2, DEEPSEEK)
PIECES = (
    *"a b A Z s ' 's 'LL 're 1 22 333 ! ... é É ß ǅ ʰ 雨 字 🙂 ٣ ½ Ⅷ _ - / \\ < > |".split(),
    *" \n\t\u00a0\u3000\u2028\u200d\u0301\0\x85\ufeff\u0e33\uac01\U0010ffffſKİ",
    *("  ", "\r\n", "\U0001f469\u200d\U0001f680", "the cat", " sat on", " the mat"),
    *("<|endoftext|>", "<|end", "|>", "<|a|><|a|>", "ab" * 70),
)
# What a wrong call may raise; anything else, and above all a signal, is a loss.
CLEAN = (GroundupError, TypeError, ValueError, OverflowError, LookupError, BufferError, OSError)


def fuzz(case: Case) -> None:
    """One entry point with inputs of the case's own."""
    name = case.pick(list(TARGETS))
    case.row, case.what = "fuzzed: native core", name
    with bounded(256 * 2**20, 20):
        TARGETS[name](case)


def make_text(rng: random.Random, most: int = 60) -> str:
    """Pieces on which scanners have gone wrong, and any code points."""
    parts = [
        rng.choice(PIECES) if rng.random() < 0.85 else _any_character(rng)
        for _ in range(rng.randrange(most))
    ]
    # The reference takes the square of a pre-token's length.
    return "".join(part * rng.choice((1, 1, 1, 2, 3, 40 // len(part) + 1)) for part in parts)


def _any_character(rng: random.Random) -> str:
    code = rng.randrange(rng.choice((0x80, 0x800, 0x3000, 0x110000)))
    return chr(code) if not 0xD800 <= code < 0xE000 else "?"


def make_bytes(rng: random.Random) -> bytes:
    """Text, most often with something in it that is none."""
    data = make_text(rng).encode()
    for _ in range(rng.randrange(4)):
        place = rng.randrange(len(data) + 1)
        odd = rng.choice((b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"))
        data = data[:place] + rng.choice((odd, b"")) + data[place + rng.randrange(2) :]
    return data


@cache
def _tokenizer(number: int) -> Tokenizer:
    """One of twenty, of all patterns, with special tokens that begin alike."""
    rng = random.Random(f"tokenizer {number}")
    specials = rng.sample(
        ["<|endoftext|>", "<|end", "<|a|>", "<|a|><|a|>", " ", "a", "雨"], number % 4
    )
    text = "".join(make_text(rng) for _ in range(20))
    size = 256 + len(specials) + rng.choice((0, 5, 60))
    pattern = PATTERNS[number % len(PATTERNS)]
    vocab, merges = train_bpe_reference(text, size, specials, pattern)
    given = {token: id for id, token in vocab.items()}
    ids = {special: given[special.encode()] for special in specials}
    whole_words = rng.random() < 0.3
    return Tokenizer.from_definition(
        TokenizerDefinition(vocab, merges, ids, pattern, whole_words=whole_words)
    )


def _encode_bytes(case: Case) -> None:
    rng = case.random
    encoder, data = _tokenizer(rng.randrange(20))._encoder, make_bytes(rng)
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


def _make_encoder(case: Case) -> None:
    rng = case.random
    definition = _tokenizer(rng.randrange(20)).definition
    tokens: list[object] = [definition.vocab.get(id) for id in range(definition.vocab_size)]
    merges: list[object] = list(definition.merges)
    specials: list[object] = [(text.encode(), id) for text, id in definition.special_tokens.items()]
    for _ in range(rng.randrange(1, 4)):
        odd = (None, b"", b"aa", "a", 7, (b"a", b"b"), (b"zz", b"q"), (b"x", -1))
        values = rng.choice((tokens, merges, specials))
        values.insert(rng.randrange(len(values) + 1), rng.choice(odd))
        if values is tokens and rng.random() < 0.5:
            del tokens[rng.randrange(len(tokens))]
    splitter = rng.choice((definition.pattern.splitter, None, "gpt2", 5))
    encoder = _call(_native.Encoder, tokens, merges, specials, splitter, rng.random() < 0.5)
    if encoder is not None:
        ids = _call(encoder.encode, make_text(rng))
        if ids is not None:
            encoder.decode_bytes(ids)


def _call_all(case: Case) -> None:
    """Any bytes, ids, separators and tokens; tests/tokenizer compares results with references."""
    rng = case.random
    data, pattern, tokenizer = make_bytes(rng), rng.choice(PATTERNS), _tokenizer(rng.randrange(20))
    for vectors in ("", *_native.vectors()[1]):
        _call(_native.Splitter(pattern.stages, (), pattern.name, vectors).split, data)
    pieces = rng.choices(
        r"a|(|)|*|+|?|{1,3}|\p{L}|[^ab]|\s|(?!\S)|(?i:|é|\Z|^|&&|[|]|-|\\".split("|"), k=9
    )
    splitter = _call(_native.Splitter, ["".join(pieces), r"\p{N}+"], ["isolated"])
    if splitter is not None:
        splitter.split(data)
    ids = [rng.randrange(tokenizer.vocab_size) for _ in range(30)]
    odd = rng.choice((-1, tokenizer.vocab_size, 2**31, 2**32, 2**64, None, "a", 0.5))
    for numbers in ([*ids, odd], np.array(ids, np.int64)[::-2], np.array([2**31, 2**63 - 1])):
        _call(tokenizer.decode, numbers)
        _call(tokenizer._encoder.decode_bytes, numbers)
    separators = [b"<|endoftext|>", b"<|a|>", b"a", b"\n", b"<|a|><|a|>"]
    for given in (rng.sample(separators, 2), rng.choice(([], [b""], ["a"], [b"\xff"], None))):
        _call(_native.find_documents, data, given)
    _native.find_invalid_utf8(data)
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += {bytes(rng.choices(b"abc", k=rng.randrange(2, 6))): None for _ in range(40)}
    if rng.random() < 0.2:
        tokens.insert(rng.randrange(len(tokens)), rng.choice((b"", b"a")))
    _call(_native.recover_merges, tokens)


def _rows(case: Case) -> None:
    """Passes over floats with buffers and counts that do not fit each other."""
    rng = case.random
    name = rng.choice(list(ROWS))
    rows, width = rng.randrange(5), rng.choice((0, 1, 2, 8, 16))
    num_arrays, num_counts, num_floats = ROWS[name]
    sizes = (rows * width, rows, width, 2 * rows * width, 3 * rows * width, 0)
    arrays: list[object] = [np.ones(rng.choice(sizes), np.float32) for _ in range(num_arrays)]
    if name == "loss_rows":
        arrays[1] = np.array([rng.choice((0, 1, -1, width, 2**40)) for _ in range(rows)], np.int64)
    if name.startswith("attend"):
        starts = np.array([rng.choice((0, 1, -1, rows, 2**40)) for _ in range(rows)], np.int64)
        arrays[6] = rng.choice((None, starts, np.zeros_like(starts)))
    if rng.random() < 0.2:
        odd = (None, b"abc", np.ones(8), np.ones((4, 4), np.float32).T, "x")
        arrays[rng.randrange(num_arrays)] = rng.choice(odd)
    counts: list[object] = [rng.choice((rows, width, 1, 2)) for _ in range(num_counts)]
    if rng.random() < 0.3:
        odd_counts = (-1, -width, 2**32, 2**62, 2**63 - 1, -(2**63), 2**64)
        counts[rng.randrange(num_counts)] = rng.choice(odd_counts)
    _call(getattr(_native, name), *arrays, *counts, *[1e-5] * num_floats, rng.choice((1, 2, 0, -1)))


# Arrays, counts and floats that each takes.
ROWS = {
    "norm_rows": (6, 2, 1),
    "norm_gradient_rows": (7, 2, 0),
    "gate_rows": (2, 2, 0),
    "gate_gradient_rows": (3, 2, 0),
    "attend": (7, 4, 1),
    "attend_back": (10, 4, 1),
    "loss_rows": (3, 2, 1),
}


def _call(function: Callable[..., Any], *arguments: object) -> Any:
    """A call that may be refused."""
    try:
        return function(*arguments)
    except CLEAN:
        return None


TARGETS: dict[str, Callable[[Case], None]] = {
    "encode bytes": _encode_bytes,
    "make an encoder": _make_encoder,
    "every function": _call_all,
    "rows of floats": _rows,
}
